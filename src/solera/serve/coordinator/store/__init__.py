"""What the coordinator must not forget."""
