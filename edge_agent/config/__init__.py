"""Settings of the agent, read from ``agent.toml``."""
