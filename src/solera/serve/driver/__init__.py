"""The program in which a learner runs, towards a coordinator."""
