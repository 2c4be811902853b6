"""Who may open the page of a device: links that work once, and sessions.

Whoever may read the agent's folder may make a link. The page keeps no session in memory, because it ends when
nobody looks: a cookie has its end and a MAC by a key in the folder.
"""

import hashlib
import hmac
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from protocol.errors import Misconfigured
from runtime.clock import Clock
from runtime.storage.files import disk_errors, write_unsynced

LINK_S: Final = 900.0
"""A link that nobody has used works for so long."""
SESSION_S: Final = 12 * 3600.0
_MAX_LINKS: Final = 16
"""With more, the oldest are removed."""
_KEY_BYTES: Final = 32


class PageAccess:
    """Links and sessions in one folder, which only the agent's user may read.

    Args:
        folder: ``page`` in ``cache_dir``.
        clock: of their ends.

    Raises:
        Misconfigured: this user may not write the folder.
        Transient: the disk is full.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._links = folder / "links"
        self._clock = clock
        with disk_errors(folder):
            self._links.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        self._key = _key_of(folder / "key")

    def new_token(self) -> str:
        """The token of a new link. Raises Misconfigured, Transient."""
        token, now = secrets.token_urlsafe(32), self._clock.wall()
        with disk_errors(self._links):
            links = sorted(self._links.iterdir(), key=lambda path: path.stat().st_mtime)
            for old in links[: max(0, len(links) - _MAX_LINKS + 1)]:
                old.unlink(missing_ok=True)
            write_unsynced(self._links / _name(token), f"{now + LINK_S:.0f}".encode())
        return token

    def redeem(self, token: str) -> str | None:
        """A session for a token; None if it was used, is too old, or was never made."""
        link = self._links / _name(token)
        try:
            end = float(link.read_bytes())
            link.unlink()  # of two at a time one succeeds
        except (OSError, ValueError):
            return None
        now = self._clock.wall()
        return self._signed(f"{now + SESSION_S:.0f}.{secrets.token_hex(16)}") if now < end else None

    def session_of(self, cookie: str) -> str | None:
        """The session of a cookie; None if it is none of ours, or over."""
        said, _, mac = cookie.rpartition(".")
        if not said or not hmac.compare_digest(self._mac("session", said).encode(), mac.encode()):
            return None
        return said if float(said.partition(".")[0]) > self._clock.wall() else None

    def csrf(self, session: str) -> str:
        """The token that a page of this session sends with each change."""
        return self._mac("csrf", session)

    def is_csrf(self, session: str, token: str) -> bool:
        """Whether a token is that of the session."""
        return hmac.compare_digest(self.csrf(session).encode(), token.encode())

    def _signed(self, said: str) -> str:
        return f"{said}.{self._mac('session', said)}"

    def _mac(self, purpose: str, said: str) -> str:
        return hmac.new(self._key, f"{purpose}:{said}".encode(), hashlib.sha256).hexdigest()


def _name(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _key_of(path: Path) -> bytes:
    """The key; made once, also if two processes start at the same moment."""
    with disk_errors(path):
        if not path.exists():
            part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            try:
                write_unsynced(part, secrets.token_bytes(_KEY_BYTES))
                with suppress(FileExistsError):
                    path.hardlink_to(part)  # whole, or not at all; the first one stays
            finally:
                part.unlink(missing_ok=True)
        key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise Misconfigured(f"{path}: not a key of {_KEY_BYTES} bytes: remove it, and open a new link")
    return key
