"""Files, blobs, spools and SQLite on disks that fail."""
