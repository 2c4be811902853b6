"""``lichen task grow``: a changed task begins from an earlier version."""
