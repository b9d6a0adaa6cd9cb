"""The owner's page: what a client shows, what waits for a decision, what left, and leaving."""
