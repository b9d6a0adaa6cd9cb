"""Everything that runs at a data owner."""
