"""Predictions of the active model, window by window and question by question."""
