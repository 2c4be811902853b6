"""The file of the present attempt: written whole at the end of each stage, before that is announced."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import cbor2
import structlog

from coordinator.secure_aggregation import record
from coordinator.secure_aggregation.book import AttemptBook
from coordinator.secure_aggregation.events import SecureRules, SecureState
from protocol.errors import Refused
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import KeyAuthority
from protocol.tasks.folding import SecureAggregation
from runtime.storage.files import write_atomic

FILE: Final = "secure_round.cbor"
log = structlog.get_logger(__name__)


class AttemptFile:
    """In the state folder. It holds who takes part, encrypted shares and the devices' answers.

    Args:
        folder: of the state.
        options: of the task.
        authority: whose certificates devices must have; None: the fleet has no identities.
    """

    def __init__(self, folder: Path, options: SecureAggregation, authority: KeyAuthority | None) -> None:
        self._file, self._options, self._authority = folder / FILE, options, authority

    def write(self, rules: SecureRules, state: SecureState, book: AttemptBook) -> None:
        """Replace the file.

        Raises:
            Transient: the disk is full; the old file stays.
        """
        times = [rules.stage_s, rules.masked_s]
        content = {"attempt": asdict(book.attempt), "times": times, "record": record.to_bytes(state, book)}
        write_atomic(self._file, cbor2.dumps(content))

    def read(self) -> tuple[SecureRules, SecureState, AttemptBook] | None:
        """What was written; None: nothing, or it is damaged, and the next attempt begins anew."""
        try:
            content: dict[str, Any] = cbor2.loads(self._file.read_bytes())
            attempt, (stage_s, masked_s) = Attempt(**content["attempt"]), content["times"]
            rules = SecureRules(self._options, attempt.digest, stage_s, masked_s)
            state, book = record.from_bytes(content["record"], rules, attempt, self._authority)
        except FileNotFoundError:
            return None
        except (OSError, cbor2.CBORDecodeError, Refused, LookupError, TypeError, ValueError) as error:
            log.warning("secure_round_unreadable", file=str(self._file), why=str(error))
            return None
        return rules, state, book
