"""Backbones from versions, and from other programs."""
