"""What devices answer when an operator looks for a fault."""
