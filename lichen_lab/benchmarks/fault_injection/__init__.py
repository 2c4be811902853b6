"""Real processes under real faults: a fleet over Mosquitto, killed, cut off and starved, and judged."""
