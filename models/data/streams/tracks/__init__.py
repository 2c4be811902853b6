"""The samples and frames that the windower still needs. NumPy."""
