"""The task, and its announcement to devices."""
