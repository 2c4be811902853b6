"""Local training, and the update that comes of it."""
