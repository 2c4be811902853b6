"""Fleets and recordings of the DisentAFL study."""
