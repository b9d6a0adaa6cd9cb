"""The theses' experiments by name: what they printed, what comes out here, and the difference."""
