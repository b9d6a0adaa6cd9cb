"""What the pages of the coordinator and of owners have in common: looks, templates, headers."""
