"""What programs and notebooks call: a simulated fleet, and a client of a fleet's console (docs/python.md)."""
