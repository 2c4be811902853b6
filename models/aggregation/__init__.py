"""Aggregation of updates: exact sums, robust folds, server optimizers."""
