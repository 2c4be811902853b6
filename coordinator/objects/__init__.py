"""Blobs, accepted frames and uploads behind one URL: a folder of this machine, or a bucket of many."""
