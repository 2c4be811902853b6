"""The supernet of DisentAFL."""
