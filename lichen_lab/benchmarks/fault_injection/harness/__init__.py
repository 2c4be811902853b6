"""Processes that stop, fail or lose their disk at a given step."""
