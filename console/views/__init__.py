"""The pages and operations that only look."""
