"""Sensors that publish to an MQTT broker."""

from edge_agent.sources.mqtt import source as source  # registers the kind
