"""Followers that write a fleet's versions to stores of other tools (docs/mlflow.md)."""
