"""Signs people in: by a certificate of the fleet's authority, or by a one-time link."""
