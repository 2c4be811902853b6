"""State of the disk x command: exit status and message of each. docs/disk-states.md shows this table."""

import re
from dataclasses import dataclass
from typing import Final

COLUMNS: Final = ("full", "locked", "read-only", "vanished")
SERVE: Final = "`lichen coordinator serve`, at the start"
RUN: Final = "`lichen agent run`, at the start"
SERVES: Final = "the coordinator, running"
RUNS: Final = "the agent, running"


@dataclass(frozen=True)
class Cell:
    """A command's exit status (None: it continues) and its message; ``STATE``: the state folder."""

    status: int | None
    says: str = ""
    note: str = ""

    def fits(self, status: int | None, said: str, state: str) -> bool:
        """Whether the result matches; paths below the state folder may be named instead of it."""
        words = re.escape(self.says).replace("STATE", re.escape(state) + r"\S*")
        return status == self.status and re.search(words, " ".join(said.split())) is not None

    @property
    def text(self) -> str:
        """The cell of the page."""
        status = "goes on" if self.status is None else str(self.status)
        says = f": {self.says.replace('STATE', '`state_dir`')}" if self.says else ""
        return f"{status}{says}{f' ({self.note})' if self.note else ''}"


_FULL = Cell(75, "the disk of STATE is full")
_HELD = Cell(75, "another process holds the database")
_READ_ONLY = Cell(78, "the disk of STATE is read-only")
_ABSENT = Cell(69, "is not there; has this coordinator ever run?")
_DONE = Cell(0)
_IDLE = Cell(69, "it does not run")
_NO_DISK = (_DONE,) * 4

TABLE: Final[dict[str, tuple[Cell, ...]]] = {
    SERVE: (_FULL, _HELD, _READ_ONLY, Cell(None, note="it begins anew")),
    RUN: (_FULL, _HELD, _READ_ONLY, Cell(None, note="it begins anew")),
    SERVES: (
        Cell(None, "the disk of STATE is full", "no receipt until there is room"),
        Cell(None, "another process holds the database", "no receipt until it lets go"),
        Cell(None, "the disk of STATE is read-only", "no receipt"),
        Cell(75, "STATE was removed, or another disk is mounted there", "no receipt"),
    ),
    RUNS: (
        Cell(None, "the disk of STATE is full", "windows wait in memory"),
        Cell(None, "another process holds the database", "windows wait in memory"),
        Cell(None, "the disk of STATE is read-only", "windows wait in memory"),
        Cell(75, "STATE was removed, or another disk is mounted there"),
    ),
    "lichen coordinator check": (_FULL, _DONE, _DONE, _DONE),
    "lichen coordinator status --why": (_FULL, _IDLE, Cell(69, "the disk of STATE is read-only"), _ABSENT),
    "lichen coordinator history": (_FULL, _DONE, _DONE, _ABSENT),
    "lichen coordinator trust status": (_DONE, _DONE, _DONE, Cell(0, "there is no root")),
    "lichen coordinator trust rotate": (_FULL, _DONE, _READ_ONLY, Cell(78, "not there")),
    "lichen round explain": (
        _FULL,
        Cell(69, "none was opened yet"),
        Cell(69, "none was opened yet"),
        _ABSENT,
    ),
    "lichen rollout status": (_FULL, _DONE, _DONE, Cell(0, "each export, at once")),
    "lichen rollout pause": (_FULL, _HELD, _READ_ONLY, Cell(65, _ABSENT.says)),
    "lichen device ls": (_FULL, _DONE, _READ_ONLY, Cell(0, "No device yet")),
    "lichen device invite": (_FULL, _HELD, _READ_ONLY, Cell(78, "authority is not there")),
    "lichen agent status --why": (_IDLE, _IDLE, _IDLE, Cell(69, "is not there; has this agent ever run?")),
    "lichen agent check": _NO_DISK,
    "lichen status": _NO_DISK,
}
_C: Final = ("-c", "{0}/coordinator.toml")
_A: Final = ("-c", "{0}/agent.toml")
MORE: Final[dict[str, tuple[str, ...]]] = {
    "lichen coordinator trust rotate": ("--root-key", "{0}/root.pem"),
    "lichen status": ("--listen-s", "0.1"),
}
"""Arguments of a command in the table besides its configuration."""
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    name: (*name.split()[1:], *(_A if name.split()[1] in {"agent", "status"} else _C), *MORE.get(name, ()))
    for name in TABLE
    if name.startswith("lichen ")
}
"""Name in the table -> its command line, for ``str.format`` with the folder."""
DAEMONS: Final[dict[str, tuple[str, ...]]] = {
    SERVE: ("coordinator", "serve", *_C),
    RUN: ("agent", "run", *_A),
}


def page() -> str:
    """The table of docs/disk-states.md."""
    head = ["", *COLUMNS]
    rows = [head, ["---"] * len(head)]
    rows += [
        [name if name in {SERVE, RUN, SERVES, RUNS} else f"`{name}`", *(cell.text for cell in cells)]
        for name, cells in TABLE.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
