"""Messages to devices: receipts, blobs, requests."""
