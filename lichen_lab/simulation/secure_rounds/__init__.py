"""Secure rounds in one process: the machines of both daemons without a broker, and a judge of messages."""
