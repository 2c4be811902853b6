"""The evaluations that the broker took over from this device, on disk: a restart repeats none of them."""

from pathlib import Path
from typing import Annotated, Final

import structlog
from pydantic import Field, ValidationError

from protocol.base import Count, Digest, Wire
from protocol.tasks.evaluation import DeviceEvaluation
from runtime.storage.files import write_atomic

_log = structlog.get_logger(__name__)
EVALUATION_FILE: Final = "evaluations.json"
"""In the state folder."""
MAX_KEPT: Final = 8


class SentEvaluation(Wire):
    """One report, and how many windows were held back when it was made."""

    held_back: Count
    rule: Digest
    """Of what decides which windows are held back, and what they are labels of."""
    report: DeviceEvaluation


class _File(Wire):
    sent: Annotated[tuple[SentEvaluation, ...], Field(max_length=MAX_KEPT)] = ()


class SentEvaluations:
    """The newest reports, by bundle, the newest last. Call :meth:`read` before the others.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sent: dict[str, SentEvaluation] = {}

    def read(self) -> None:
        """Read the file; a missing or damaged one is empty: the evaluations are made again."""
        try:
            found = _File.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            _log.warning("evaluations_not_read", file=str(self._path), why=str(error)[:200])
            return
        self._sent = {one.report.bundle: one for one in found.sent}

    def get(self, bundle: str) -> SentEvaluation | None:
        """The last report on a bundle."""
        return self._sent.get(bundle)

    @property
    def newest(self) -> SentEvaluation | None:
        """The last report."""
        return next(reversed(self._sent.values()), None)

    def put(self, sent: SentEvaluation) -> None:
        """Store a report. Touches the disk.

        Raises:
            Transient: the disk does not take it; it is known until the agent ends.
        """
        self._sent.pop(sent.report.bundle, None)
        self._sent[sent.report.bundle] = sent
        for bundle in [*self._sent][:-MAX_KEPT]:
            del self._sent[bundle]
        write_atomic(self._path, _File(sent=tuple(self._sent.values())).model_dump_json().encode())
