"""Attacks that check what ``[privacy]`` claims, and show what updates tell without it."""
