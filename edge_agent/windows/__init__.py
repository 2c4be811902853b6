"""From samples to scored windows in the store."""
