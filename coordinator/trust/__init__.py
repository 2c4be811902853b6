"""Who signs the fleet's bundles, and the signing: keys, the repository of metadata, the command."""
