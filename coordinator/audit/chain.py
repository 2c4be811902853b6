"""Entries of the audit log, and the check of their chain. Pure.

Each row names the SHA-256 of the row before it. A row that is changed, removed, inserted or moved breaks the
chain at that place, unless every later row is computed anew. A recorded head (a row's number and digest, kept
elsewhere) shows that, too, and shows rows that were cut off the end.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, ValidationError

from protocol.base import Digest, Wire
from protocol.errors import Misconfigured
from runtime.text import one_line

NOTHING: Final = "0" * 64
"""The digest that the first row names."""
BEGUN: Final = "begun"
"""Outcome of the row that is written before an action; a later row with ``of`` says how it ended."""
_MAX_WORDS: Final = 500
_HEAD: Final = re.compile(r"([1-9][0-9]{0,9}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Person:
    """Who acts.

    Attributes:
        name: of the person, or of the account of the operating system.
        role: what they may do: viewer, operator or admin.
        how: how they are known: a certificate, a one-time link, the command line.
    """

    name: str
    role: str
    how: str


class AuditEntry(Wire):
    """One row of the log.

    Attributes:
        seq: number of the row, from 1.
        wall: Unix seconds.
        who: name of the person.
        role: their role.
        how: how they signed in.
        action: such as ``device.revoke``.
        target: a device, a rollout, a role; empty if there is none.
        outcome: ``begun``, or what became of it.
        of: number of the row that began the action; None in that row.
        task: name of the further task that it is about; None: the main task, or the whole fleet.
        before: digest of the row before.
    """

    seq: Annotated[int, Field(ge=1)]
    wall: float
    who: str
    role: str
    how: str
    action: str
    target: str
    outcome: str
    of: int | None = None
    task: str | None = None
    before: Digest


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A row as it is stored: ``doc`` is an :class:`AuditEntry` as JSON."""

    seq: int
    doc: str
    digest: str


@dataclass(frozen=True, slots=True)
class AuditHead:
    """A row's number and digest: everything up to it is fixed by this."""

    seq: int
    digest: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.digest}"

    @classmethod
    def read(cls, text: str, where: str) -> "AuditHead":
        """Read ``NUMBER:DIGEST``.

        Raises:
            Misconfigured: it is something else; the message begins with ``where``.
        """
        found = _HEAD.fullmatch(text.strip())
        if found is None:
            raise Misconfigured(f"{where}: {one_line(text, 80)!r} is no head of an audit log, NUMBER:DIGEST")
        return cls(int(found[1]), found[2])


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """What the check found.

    Attributes:
        head: of the last sound row; None: there is none.
        row: the first one that was changed or removed; None: the log is sound.
        why: what is wrong with it.
    """

    head: AuditHead | None
    row: int | None = None
    why: str = ""


def next_row(
    last: AuditHead | None,
    person: Person,
    *,
    action: str,
    target: str,
    outcome: str,
    wall: float,
    of: int | None = None,
    task: str | None = None,
) -> AuditRow:
    """The row after ``last``."""
    entry = AuditEntry(
        seq=1 if last is None else last.seq + 1,
        wall=wall,
        who=one_line(person.name, 100),
        role=person.role,
        how=one_line(person.how, 100),
        action=action,
        target=one_line(target, 200),
        outcome=one_line(outcome, _MAX_WORDS),
        of=of,
        task=task,
        before=NOTHING if last is None else last.digest,
    )
    doc = entry.model_dump_json(
        exclude={"task"} if task is None else None
    )  # as rows were before there were tasks
    return AuditRow(entry.seq, doc, digest_of(doc))


def digest_of(doc: str) -> str:
    """SHA-256 of a row's text."""
    return hashlib.sha256(doc.encode()).hexdigest()


def verify(rows: Iterable[AuditRow], heads: Iterable[AuditHead] = ()) -> ChainCheck:
    """Check the chain.

    Args:
        rows: by number.
        heads: that were recorded elsewhere.

    Returns:
        The first row that is not what was written.
    """
    recorded = sorted(heads, key=lambda one: one.seq)
    last: AuditHead | None = None
    for row in rows:
        fault = _fault(row, last)
        while not fault and recorded and recorded[0].seq == row.seq:
            if recorded.pop(0).digest != row.digest:
                words = "is not the one that was recorded: it, or one before it, was written anew"
                fault = row.seq, f"row {row.seq} {words}"
        if fault:
            return ChainCheck(last, *fault)
        last = AuditHead(row.seq, row.digest)
    if recorded:
        due = _after(last)
        words = f"rows {due} to {recorded[-1].seq} are missing: the end of the log was cut off"
        return ChainCheck(last, due, words)
    return ChainCheck(last)


def _after(last: AuditHead | None) -> int:
    return 1 if last is None else last.seq + 1


def _fault(row: AuditRow, last: AuditHead | None) -> tuple[int, str] | None:
    """The first row that is wrong, and why, if this one shows it."""
    due, seq = _after(last), row.seq
    if seq != due:
        return due, f"row {due} is missing; the next one is row {seq}"
    if digest_of(row.doc) != row.digest:
        return seq, f"row {seq} is not what its digest was made of"
    try:
        entry = AuditEntry.model_validate_json(row.doc)
    except ValidationError:
        return seq, f"row {seq} is no entry of an audit log"
    if entry.seq != seq:
        return seq, f"row {seq} holds the entry of row {entry.seq}"
    if entry.before != (NOTHING if last is None else last.digest):
        first = max(1, seq - 1)
        return first, f"row {seq} names another row before it: row {first} was replaced"
    return None
