"""Federated preprocessing: what is learned about columns comes from folded counts and moments."""
