"""``lichen agent sensors``: what this machine has to sense with, and whether it works as configured."""
