"""Versions as devices get them: rounded values, differences and packed blobs."""
