"""What helps to find a fault from afar: the last log lines, removal of secrets, and a bundle of both."""
