"""From an MQTT message to an accepted update on disk."""
