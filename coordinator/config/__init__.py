"""Settings of the coordinator, read from ``coordinator.toml``."""
