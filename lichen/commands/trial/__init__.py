"""``lichen task try``."""
