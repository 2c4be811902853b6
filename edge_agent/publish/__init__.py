"""Publishes predictions on this site: on a local MQTT topic, and for Home Assistant by MQTT discovery."""
