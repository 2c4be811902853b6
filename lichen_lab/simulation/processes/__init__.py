"""Fleets of real processes on one machine."""
