"""The rollouts at the end of the demo: one device tries a bad model and drops it; all get a good one."""
