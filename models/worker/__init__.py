"""The process that trains: ``python -m models.worker``."""
