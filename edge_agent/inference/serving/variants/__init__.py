"""Which variant of a model (float32, int8) a device serves, and the measurements behind it."""
