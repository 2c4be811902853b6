"""The coordinator's side of secure rounds: the state machine, what it stores, and how it removes masks."""
