"""Secure aggregation: sums of masked vectors, of which the coordinator learns nothing but the sum (ADR 55).

SecAgg+ in the manner of Bell et al. 2020, over whole numbers modulo a power of two. What both daemons share:
the graph of neighbours, keys, masks, shares of secrets, packing and messages.
"""
