"""The commands of ``lichen coordinator``, ``device``, ``rollout`` and ``round``."""
