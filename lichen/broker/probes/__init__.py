"""The probes: each makes its own connections, below its own topics, and returns what it observed."""
