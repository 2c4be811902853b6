"""Deterministic simulation of the real daemons: a seed drives link, disk, clock and faults."""
