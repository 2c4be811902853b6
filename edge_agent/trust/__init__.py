"""Signed metadata: verification before the agent acts on it."""
