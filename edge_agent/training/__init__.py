"""Local training, and the update it makes."""
