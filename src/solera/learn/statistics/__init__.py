"""Statistics that are published: models with standard errors, and survival curves."""
