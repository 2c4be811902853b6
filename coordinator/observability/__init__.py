"""What a monitoring stack takes: Grafana dashboards, Prometheus alert rules and a scrape configuration."""
