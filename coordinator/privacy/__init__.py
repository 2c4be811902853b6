"""Central differential privacy at the coordinator: the noise's secret, and the account of versions."""
