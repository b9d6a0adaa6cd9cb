"""Local training: the readable reference version, and the fast ones that are tested against it."""
