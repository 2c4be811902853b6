"""What both daemons share: MQTT link, durable files, child processes, supervision, settings, clock, logs."""
