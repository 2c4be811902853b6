"""Jobs in child processes, and the encoder models they make."""
