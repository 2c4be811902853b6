"""The fold of a round's updates: outlier screen, device weights, and sums."""
