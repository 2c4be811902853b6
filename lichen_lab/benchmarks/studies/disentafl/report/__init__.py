"""The study's report: one HTML file."""
