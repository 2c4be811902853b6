"""What the coordinator of TACTFL trains itself."""
