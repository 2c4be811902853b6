"""A study's page: one HTML file that needs nothing else; what the pages of all studies share."""
