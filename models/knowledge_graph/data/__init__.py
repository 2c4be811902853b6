"""Knowledge graphs as files, indices and embedding tables."""
