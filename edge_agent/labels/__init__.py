"""Labels by a person: which windows to ask for, and the local interface of the page and the command line."""
