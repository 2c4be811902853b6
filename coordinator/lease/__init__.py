"""Which one of several processes leads."""
