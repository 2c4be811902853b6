"""Rollouts: a version goes to canaries first, then in waves to all, if each stage stays healthy."""
