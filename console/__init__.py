"""The coordinator's pages and management API: a process of its own that reads the coordinator's tables."""
