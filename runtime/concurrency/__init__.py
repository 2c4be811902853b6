"""Signals and threads of a daemon."""
