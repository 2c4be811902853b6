"""Parts that all demos share: fleet, chaos, results, screen."""
