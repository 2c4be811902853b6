"""Federated training in one process, without a broker."""
