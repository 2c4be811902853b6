"""On the path of a traced process: Python imports ``sitecustomize`` at its start."""
