"""Backups, integrity checks, and the rebuild of a lost database."""
