"""What operators do from pages and by the API: forms, endpoints, and the words of their answers."""
