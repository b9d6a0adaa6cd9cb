"""Clustering: federated k-means, its seeding, and the agreement of clusterings."""
