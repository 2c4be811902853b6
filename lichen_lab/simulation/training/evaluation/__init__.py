"""What a simulation is evaluated on."""
