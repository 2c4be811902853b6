"""The parts of the study."""
