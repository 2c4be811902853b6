"""A coordinator of several processes: any number that accept updates, and one that leads the rounds."""
