"""A fleet on one machine: training alone, daemons in virtual time, or real processes."""
