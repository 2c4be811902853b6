"""``lichen agent doctor``: what on this device would keep an agent from its work, and what to do about it.

A file for each group of checks. In each, ``judge`` is a pure function from facts to findings, and ``probe``
looks at the machine and gives the facts; every probe has a time limit, needs no root and changes nothing.
"""
