"""The study's parts, one module a table."""
