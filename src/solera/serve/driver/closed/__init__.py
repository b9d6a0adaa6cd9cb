"""Closed jobs for a researcher: register a text, wait, and open the sealed result."""
