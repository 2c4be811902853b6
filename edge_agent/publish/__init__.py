"""Predictions for others on this site: a local MQTT topic, and Home Assistant by MQTT discovery."""
