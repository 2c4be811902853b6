"""Parts of the study, each in a module."""
