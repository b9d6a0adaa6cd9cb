"""Studies with a name: the published tables, beside what Solera finds."""
