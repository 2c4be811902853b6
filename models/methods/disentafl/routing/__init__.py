"""Which experts a device gets: gate, features, blob names."""
