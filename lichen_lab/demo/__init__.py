"""``lichen demo``: a broker, a coordinator, six training agents and an observing one, all real processes."""
