"""What operators do: one function for each action, called by the commands and by the console.

Each writes the audit log before it acts and after it.
"""
