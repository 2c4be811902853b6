"""Which bundle each device is pointed to."""
