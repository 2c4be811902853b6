"""The parts of the study, one module each."""
