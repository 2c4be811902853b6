"""The study's page: one HTML file that needs nothing else."""
