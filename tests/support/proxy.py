"""The fault proxy, for tests: ``Proxy(upstream_port)``; see its methods. No pytest needed."""

from lichen_lab.simulation.processes.tcp_proxy import Direction, Proxy

__all__ = ["Direction", "Proxy"]
