"""Wire messages, topics, frames, and signed statements.

Pure: no asyncio, clock, logging, torch or sockets. All functions depend on their arguments alone, so the
agent, the coordinator, the simulation and the fuzzers share one implementation of the wire.
"""
