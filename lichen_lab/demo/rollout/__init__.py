"""How the demo ends: a bad model that one device tries and drops by itself, then a good one for all."""
