"""The real daemons in a simulated world: link, disk, clock and faults driven by a seed."""
