"""What happens in a simulated fleet, and the invariants it must keep."""
