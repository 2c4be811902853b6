"""What several benchmarks share: swarms, tasks, child processes."""
