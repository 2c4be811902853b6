"""The studies of the four methods."""
