"""Which devices the coordinator accepts messages from: operator decisions and quarantine."""
