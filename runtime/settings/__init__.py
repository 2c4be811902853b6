"""Settings from TOML and the environment."""
