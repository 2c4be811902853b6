"""The tasks of a fleet: which there are, and the pages of each, opened where somebody looks."""
