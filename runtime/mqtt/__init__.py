"""The MQTT link: session, flow control, keepalive, TLS."""
