"""How simulated devices are made, and dealt to groups and processes."""
