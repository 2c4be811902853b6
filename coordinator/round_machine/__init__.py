"""The state machine of a round: events, transitions, queries. Pure."""
