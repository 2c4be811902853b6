"""Messages between the agent and the coordinator."""
