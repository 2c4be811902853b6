"""The training on the coordinator of TACTFL."""
