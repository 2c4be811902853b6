"""The fault matrix over a coordinator of several processes, on PostgreSQL."""
