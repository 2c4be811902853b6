"""Scenarios of a simulated fleet, and the invariants it must keep."""
