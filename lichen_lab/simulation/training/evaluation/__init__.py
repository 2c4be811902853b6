"""Evaluation data and scores of a simulation."""
