"""Learning from clients that hold different columns of the same people."""
