"""What is known of the devices: states, requirements, serving routes."""
