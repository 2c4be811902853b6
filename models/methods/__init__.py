"""One folder per federated method; ``models.registry`` finds them, nothing else names one."""
