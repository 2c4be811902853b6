"""What all demos share: the fleet, the chaos, the results."""
