"""Reads the coordinator's tables: through one read-only connection, in short transactions."""
