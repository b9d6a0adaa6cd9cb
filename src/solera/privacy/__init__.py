"""What protects the numbers that leave a client: encryption, masking, noise, and their keys."""
