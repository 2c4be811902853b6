"""The agent's files, except its windows."""
