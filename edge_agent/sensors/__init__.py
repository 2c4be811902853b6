"""``lichen agent sensors``: lists the sensors of this machine, and tests the configured ones."""
