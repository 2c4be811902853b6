"""Secure rounds at the coordinator: the service, the opening of a sum, the file of the attempt."""
