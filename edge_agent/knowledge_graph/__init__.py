"""Reads facts and questions of a knowledge graph from files."""
