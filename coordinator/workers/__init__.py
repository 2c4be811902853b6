"""Jobs in child processes, and the encoder models that they make."""
