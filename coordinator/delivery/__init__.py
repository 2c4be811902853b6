"""Delivery: the bundle that each device is to run."""
