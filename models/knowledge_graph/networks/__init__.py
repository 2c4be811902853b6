"""Networks for knowledge graph completion."""
