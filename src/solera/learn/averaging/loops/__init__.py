"""Training loops of one's own, federated."""
