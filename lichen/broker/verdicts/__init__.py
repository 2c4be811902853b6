"""From facts to findings: pure functions, one table."""
