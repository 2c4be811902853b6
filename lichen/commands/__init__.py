"""Commands that belong to neither daemon."""
