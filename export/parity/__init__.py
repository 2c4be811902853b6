"""The comparison of an exported model with torch."""
