"""Evaluations that devices report: checked, one bounded row each, and sums over the fleet by version."""
