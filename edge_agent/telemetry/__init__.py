"""What the device reports about itself: its own metrics at intervals, and its log lines on request."""
