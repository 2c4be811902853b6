"""Recordings while they are imported, and as they are written."""
