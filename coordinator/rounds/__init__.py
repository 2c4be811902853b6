"""Runs rounds: :mod:`coordinator.round_machine` decides, ``driver`` acts, ``worker`` does slow work."""
