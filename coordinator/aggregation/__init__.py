"""The fold of a round's updates: screening, weights, and the sums they go into."""
