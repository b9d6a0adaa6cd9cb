"""Closed jobs at an owner: this client runs the approved learner itself; only sums leave."""
