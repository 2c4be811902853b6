"""Secure rounds and rounds with privacy in the simulated world: their plans, observers and liars."""
