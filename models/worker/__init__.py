"""The training process: ``python -m models.worker``."""
