"""A device's side of secure rounds: the state machine, and its record (docs/secure-aggregation.md)."""
