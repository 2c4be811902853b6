"""A fault of ours that a peer's bytes reach must not stop the fleet: log it loudly, refuse them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from protocol.errors import Reason, Refused, Transient

log = structlog.get_logger(__name__)

_FAULTS: Final = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError)


@contextmanager
def contain_faults(where: str) -> Iterator[None]:
    """Around code that reads what a peer sent.

    Raises:
        Refused: it failed in a way nobody foresaw.
        Transient: no memory. What an update may need is bounded, so it is not the peer's fault.
    """
    try:
        yield
    except MemoryError as error:
        raise Transient(f"{where}: out of memory") from error
    except _FAULTS as error:
        log.exception("fault_while_reading_a_peer", where=where)
        raise Refused(Reason.MALFORMED, f"{where} failed: {type(error).__name__}: {error}"[:500]) from error
