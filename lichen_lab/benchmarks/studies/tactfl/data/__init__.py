"""Fleets and recordings of the TACTFL study."""
