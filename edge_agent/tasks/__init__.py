"""The task of the device, and the data that fits it."""
