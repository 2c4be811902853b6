"""Metrics that devices report about themselves: the newest of each, its history, and their distribution."""
