"""The page of a device: its live signal, the windows, and labels by one press. A process beside the agent."""
