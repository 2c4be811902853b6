"""The agent's status file, and what it waits for."""
