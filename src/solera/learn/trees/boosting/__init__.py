"""Boosting: on histograms that clients add up, and by clients that take turns (SimFL)."""
