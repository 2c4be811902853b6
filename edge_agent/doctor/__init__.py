"""``lichen agent doctor``: finds what keeps an agent on this device from its work, and says what to do.

A file for each group of checks. In each, ``judge`` is a pure function from facts to findings, and ``probe``
reads the facts from the machine; every probe has a time limit, needs no root and changes nothing.
"""
