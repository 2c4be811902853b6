"""Text for people, from names and from text of others. Pure."""

import ipaddress
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final

MAX_NAMES: Final = 8
"""Names shown in one line."""


def one_line(words: str, limit: int | None = None) -> str:
    """One line of at most ``limit`` characters, without control characters that a terminal would execute."""
    line = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    return line if limit is None or len(line) <= limit else f"{line[: limit - 3]}..."


def first_few(
    names: Collection[str] | Mapping[str, object], limit: int = MAX_NAMES, separator: str = ", "
) -> str:
    """The first names, and how many more there are: ``a, b and 3 more``."""
    more = len(names) - limit
    return separator.join(islice(names, limit)) + (f" and {more} more" if more > 0 else "")


def peer_of(host: str) -> str:
    """An address as one peer: IPv4 as it is, of IPv6 the /64 that one customer has."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)
