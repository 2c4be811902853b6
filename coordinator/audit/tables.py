"""The tables of operators: the audit log, their orders to the daemon, who they are, one-time links, sessions.

Written by the commands and by the console; the daemon reads the orders.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.storage.engines.shared_tables import Design

VERSION: Final = 2
READABLE_FROM: Final = 1
UPGRADES: Final[Mapping[int, Sequence[str]]] = {1: ()}
_LOST: Final = (
    "restore it from its copy (.backup, beside it) or a whole backup (docs/coordinator-state.md); "
    "`lichen audit verify` names the rows that are missing then"
)
_SCHEMA: Final = (
    # doc: an entry as JSON, which names the digest of the row before; digest: SHA-256 of doc.
    "CREATE TABLE IF NOT EXISTS audit (seq INTEGER PRIMARY KEY, doc TEXT NOT NULL, digest TEXT NOT NULL)",
    # One row: whether rounds are held or ended, by whom, and why.
    """CREATE TABLE IF NOT EXISTS rounds (
        id INTEGER PRIMARY KEY CHECK (id = 1), state TEXT NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL,
        wall REAL NOT NULL)""",
    # Devices that the daemon is to send a command; it removes the row.
    """CREATE TABLE IF NOT EXISTS requests (
        device TEXT NOT NULL, command TEXT NOT NULL, wall REAL NOT NULL, PRIMARY KEY (device, command))
        WITHOUT ROWID""",
    # People with a certificate of the fleet's authority. serial: hexadecimal, of the newest one.
    """CREATE TABLE IF NOT EXISTS people (
        name TEXT PRIMARY KEY, role TEXT NOT NULL, serial TEXT NOT NULL, not_after REAL NOT NULL,
        made_wall REAL NOT NULL, revoked_wall REAL) WITHOUT ROWID""",
    # id: the first half of the token's SHA-256, the key; hash: all of it, compared in constant time.
    """CREATE TABLE IF NOT EXISTS links (
        id TEXT PRIMARY KEY, hash TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL,
        expires_wall REAL NOT NULL, used_wall REAL) WITHOUT ROWID""",
    # Who is signed in to the console. id and hash: of the cookie's value, as above. how: for the audit log.
    """CREATE TABLE IF NOT EXISTS sessions (
        id TEXT PRIMARY KEY, hash TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL, how TEXT NOT NULL,
        began_wall REAL NOT NULL, used_wall REAL NOT NULL, expires_wall REAL NOT NULL) WITHOUT ROWID""",
)

OPERATORS: Final = Design("operators.sqlite3", "operators", _SCHEMA, VERSION, READABLE_FROM, UPGRADES, _LOST)
