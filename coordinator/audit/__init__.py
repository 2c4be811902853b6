"""The audit log of operators' actions, and the tables that it shares with their orders."""
