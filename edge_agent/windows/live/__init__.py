"""What people see of a device now: samples, windows and pictures."""
