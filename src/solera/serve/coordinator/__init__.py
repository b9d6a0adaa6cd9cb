"""The service that carries and stores asks and replies."""
