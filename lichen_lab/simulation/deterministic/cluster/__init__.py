"""A coordinator of several processes in a simulated world: its database, its bucket and its machines."""
