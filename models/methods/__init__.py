"""One folder for each federated method; ``models.registry`` finds them, no other module names one."""
