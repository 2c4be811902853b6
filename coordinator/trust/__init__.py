"""Signing of the fleet's bundles: keys, the repository of metadata, the root ceremony."""
