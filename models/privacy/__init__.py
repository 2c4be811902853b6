"""Accounts of differential privacy."""
