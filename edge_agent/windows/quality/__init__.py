"""Signal quality of a window."""
