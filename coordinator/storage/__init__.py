"""The coordinator's database, journal, model registry and blobs."""
