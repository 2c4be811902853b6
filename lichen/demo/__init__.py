"""``lichen demo``: a broker, a coordinator, six training agents and one observing agent, all real processes."""
