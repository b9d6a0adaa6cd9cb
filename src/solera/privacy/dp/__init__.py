"""Differential privacy: what protects, how much of it, and what it was worth."""
