"""Further tasks of a fleet in one process (docs/several-tasks.md)."""
