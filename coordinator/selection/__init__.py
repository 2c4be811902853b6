"""Which devices train in a round."""
