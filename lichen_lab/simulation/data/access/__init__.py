"""Download, archives, caches and splits of data sets."""
