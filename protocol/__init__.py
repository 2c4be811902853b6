"""What travels and what is signed.

Pure: no asyncio, clock, logging, torch or sockets. Everything here is a function of its arguments, so that
the agent, the coordinator, the simulation and the fuzzers share one reading of the wire.
"""
