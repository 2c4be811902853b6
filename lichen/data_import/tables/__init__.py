"""Tables: their columns, times and rows."""
