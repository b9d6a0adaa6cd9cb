"""Regression on columns of several parties by encrypted, masked gradients."""
