"""What the coordinator answers, by who asks."""
