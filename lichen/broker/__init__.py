"""``lichen broker check``: what lichen needs of a broker, tried against it."""
