"""Data sets, and the streams and fleets made from them."""
