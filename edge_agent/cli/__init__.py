"""The commands of ``lichen agent``."""
