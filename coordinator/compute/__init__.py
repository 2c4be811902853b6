"""Slow work of rounds on a Ray cluster: a child process of the coordinator is its client (ADR 41)."""
