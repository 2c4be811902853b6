"""Rollouts: a version goes to canaries first, then in waves to all, as far as each stage stays healthy."""
