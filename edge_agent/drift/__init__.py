"""Compares what the committed model says with its own first days on this device."""
