"""Training and ranking on knowledge graphs."""
