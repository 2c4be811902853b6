"""What programs and notebooks call: a simulated fleet (docs/python.md)."""
