"""Signed metadata and decisions."""
