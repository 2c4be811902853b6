"""Daemons and worker processes."""
