"""Who may use the console: people with certificates, one-time links, and sessions."""
