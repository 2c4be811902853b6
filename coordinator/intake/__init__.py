"""Updates that other processes accept for the one that leads."""
