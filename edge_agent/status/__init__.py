"""The agent's status file, and the conditions that it waits for."""
