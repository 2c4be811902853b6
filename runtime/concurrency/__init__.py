"""Signals, threads and waits of a daemon."""
