"""``lichen.Fleet``: a fleet as its console shows it, and what operators may do, as methods."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from lichen.api.console_http import ConsoleHttp, ConsoleRefused, TlsNames, path_of
from lichen.api.rows import Rows
from protocol.errors import Misconfigured, Reason

TIMEOUT_S: Final = 30.0
_FIRST: Final = ("accuracy", "macro_f1")


class Fleet:
    """A client of the API of ``lichen console serve`` (docs/console.md); answers are dicts, lists are tables.

    On the machine of the console, as long as no person was admitted, one may look without a sign-in. Else a
    session begins with the first call, by a one-time link, or by the certificate of a person.

    Args:
        url: of the console, as ``http://127.0.0.1:8480``.
        link: of ``lichen console link``; it works once, so keep :attr:`session` for the next program.
        certificate: of a person, as ``lichen console person add --pem FILE`` writes it; or the pair of a
            certificate's file and its key's.
        ca: the fleet's authority (``authority/ca.crt``); None: the machine's authorities.
        session: of an earlier client, instead of a link.
        task: which further task of the fleet is meant; empty: the main one. Sign-in, admission, people and
            audit log are those of the fleet.
        timeout_s: seconds for one answer.

    Raises:
        Misconfigured: the address is no console's, or two ways to sign in are named. Every method: nobody is
            signed in, or the server is not trusted.
        Refused: of every method: the console's words why not.
        Transient: of every method: the console cannot be reached, or cannot answer now.
    """

    def __init__(
        self,
        url: str,
        *,
        link: str = "",
        certificate: str | Path | tuple[str | Path, str | Path] | None = None,
        ca: str | Path | None = None,
        session: str = "",
        task: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if sum(map(bool, (link, certificate, session))) > 1:
            raise Misconfigured("name one of link, certificate and session: each of them signs in")
        files = certificate if isinstance(certificate, tuple) else (certificate,) if certificate else ()
        tls = TlsNames(None if ca is None else Path(ca), tuple(Path(one) for one in files))
        self._http = ConsoleHttp(url, tls, timeout_s, session)
        self._link = link
        self._certified = bool(certificate)
        self.task = task

    @property
    def url(self) -> str:
        """The console's address."""
        return self._http.url

    @property
    def session(self) -> str:
        """The cookie of the session: a secret, for ``Fleet(url, session=...)``; empty: there is none."""
        return self._http.session

    def get(self, path: str, **query: Any) -> Any:
        """The answer of any operation of ``/api/v1`` that reads, such as ``get("/quarantine")``."""
        self._enter()
        return self._http.get(path_of(self.task, path), query)

    def post(self, path: str, **body: Any) -> Any:
        """The answer of any operation of ``/api/v1`` that changes something; it needs a session."""
        self._enter()
        return self._http.post(path_of(self.task, path), body)

    def close(self) -> None:
        """End the session."""
        self._http.sign_out()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Fleet at {self.url}{f', task {self.task}' if self.task else ''}>"

    # What there is

    def status(self) -> dict[str, Any]:
        """Where the coordinator stands, and what it waits for."""
        return dict(self.get("/status"))

    def who(self) -> dict[str, Any]:
        """Who is signed in, with which role."""
        return {name: value for name, value in self.get("/session").items() if name != "token"}

    def tasks(self) -> Rows:
        """All tasks of the fleet, the main one (``name`` None) first."""
        return Rows(self.get("/tasks")["tasks"])

    def devices(self, limit: int | None = None, **filters: Any) -> Rows:
        """Devices, by name; filters of the console: ``status``, ``role``, ``modality``, ``label``, ``q``."""
        return self._all("/devices", "devices", "device", limit, filters)

    def device(self, name: str) -> dict[str, Any]:
        """One device: quality, metrics over time, rounds, refusals."""
        return dict(self.get(f"/devices/{_part(name)}"))

    def rounds(self, limit: int | None = None) -> Rows:
        """Rounds, the newest first."""
        return self._all("/rounds", "rounds", "round", limit, {})

    def round(self, number: int) -> dict[str, Any]:
        """One round: attempts, steps, weights."""
        return dict(self.get(f"/rounds/{number:d}"))

    def round_devices(self, number: int, limit: int | None = None, **filters: Any) -> Rows:
        """The devices of a round, what came of each, and why."""
        return self._all(f"/rounds/{number:d}/devices", "devices", "device", limit, filters)

    def versions(self, limit: int | None = None) -> Rows:
        """Versions, the newest first, with their metrics."""
        return self._all("/versions", "versions", "version", limit, {})

    def version(self, number: int) -> dict[str, Any]:
        """One version: lineage, confusion, bundles."""
        return dict(self.get(f"/versions/{number:d}"))

    def evaluation(self, version: int) -> dict[str, Any]:
        """What devices found about a version on windows that they hold back; the first page of devices."""
        return dict(self.get(f"/versions/{version:d}/evaluation"))

    def rollouts(self) -> Rows:
        """Rollouts, the newest first."""
        return Rows(self.get("/rollouts")["rollouts"]["rollouts"])

    def rollout(self, number: int) -> dict[str, Any]:
        """One rollout: stages, gates, log."""
        return dict(self.get(f"/rollouts/{number:d}"))

    def rollout_devices(self, number: int, limit: int | None = None, **filters: Any) -> Rows:
        """The devices of a rollout, and the verdict of each."""
        return self._all(f"/rollouts/{number:d}/devices", "devices", "device", limit, filters)

    def refusals(self, limit: int | None = None, **filters: Any) -> Rows:
        """Refused messages by device and reason."""
        return self._all("/refusals", "refusals", ("device", "reason"), limit, filters)

    def audit(self, limit: int | None = None, **filters: Any) -> Rows:
        """Who did what, the newest first; filters: ``person``, ``action``, ``device``, ``q``."""
        return self._all("/audit", "rows", "seq", limit, filters)

    def history(self) -> Rows:
        """A row for each round, the oldest first, with the scores of the version that it made as columns."""
        rows = []
        for one in reversed(self.rounds()):
            metrics = dict(one["metrics"])
            first = {name: metrics.pop(name, None) for name in _FIRST}
            known = {name: value for name, value in one.items() if name != "metrics"}
            rows.append({**known, **first, **metrics})
        return Rows(rows)

    def download(self, version: int, path: str | Path, digest: str = "") -> Path:
        """Write a bundle of a version to a file, and check its SHA-256; the file's path.

        Args:
            version: which.
            path: the file.
            digest: which of the version's bundles; empty: the only one.

        Raises:
            Refused: the version has no such bundle, or several; or its bytes are others.
            OSError: the file cannot be written.
        """
        known = {one["bundle"]["digest"]: one["path"] for one in self.version(version)["bundles"]}
        if not digest and len(known) != 1:
            there = ", ".join(known) or "none; is it exported, and not too old?"
            words = f"name one bundle of version {version} with digest=: {there}"
            raise ConsoleRefused(Reason.UNKNOWN_TASK, words)
        wanted = digest or next(iter(known))
        if wanted not in known:
            raise ConsoleRefused(Reason.UNKNOWN_TASK, f"version {version} has no bundle {wanted}")
        file = Path(path)
        with TemporaryDirectory(dir=file.parent, prefix=f".{file.name}-") as scratch:
            whole = Path(scratch) / "bundle"
            if self._bring(known[wanted], whole) != wanted:
                words = f"{self.url}: the bundle of version {version} is damaged"
                raise ConsoleRefused(Reason.WRONG_DIGEST, words)
            whole.replace(file)
        return file

    # What operators do

    def create_rollout(
        self,
        version: int | None = None,
        *,
        canary: str | None = None,
        waves: Sequence[float] | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Start a rollout of a version (None: the newest); the rest as ``[rollout]`` of the coordinator."""
        given = {"version": version, "canary": canary, "waves": waves, **settings}
        return dict(self.post("/rollouts", **given))

    def pause_rollout(self, number: int, phase: str | None = None) -> dict[str, Any]:
        """Pause a rollout. ``phase``: refuse if it is in another phase by now."""
        return dict(self.post(f"/rollouts/{number:d}/pause", phase=phase))

    def resume_rollout(self, number: int, phase: str | None = None) -> dict[str, Any]:
        """Let a paused rollout go on."""
        return dict(self.post(f"/rollouts/{number:d}/resume", phase=phase))

    def abort_rollout(self, number: int, phase: str | None = None) -> dict[str, Any]:
        """End a rollout: all devices go back to the stable version."""
        return dict(self.post(f"/rollouts/{number:d}/abort", phase=phase))

    def hold_rounds(self, why: str = "") -> dict[str, Any]:
        """Open no further round."""
        return dict(self.post("/rounds/hold", why=why))

    def resume_rounds(self) -> dict[str, Any]:
        """Open rounds again."""
        return dict(self.post("/rounds/resume"))

    def end_rounds(self, why: str = "") -> dict[str, Any]:
        """End the rounds; the last version is exported."""
        return dict(self.post("/rounds/end", why=why))

    def ask_state(self, device: str) -> dict[str, Any]:
        """Ask a device for its state."""
        return dict(self.post(f"/devices/{_part(device)}/ask-state"))

    def ask_logs(self, device: str) -> dict[str, Any]:
        """Ask a device for its last log lines."""
        return dict(self.post(f"/devices/{_part(device)}/ask-logs"))

    def release(self, device: str) -> dict[str, Any]:
        """End the quarantine of a device."""
        return dict(self.post(f"/devices/{_part(device)}/release"))

    def invite(self, device: str | None = None, hours: float = 24.0) -> dict[str, Any]:
        """Make an invite for a device; None: for any new name, which then waits for approval."""
        return dict(self.post("/invites", device=device, lasts_s=3600.0 * hours))

    def approve(self, device: str) -> dict[str, Any]:
        """Admit a device that waits."""
        return dict(self.post(f"/devices/{_part(device)}/approve"))

    def revoke(self, device: str) -> dict[str, Any]:
        """Revoke the certificates of a device, for good."""
        return dict(self.post(f"/devices/{_part(device)}/revoke"))

    def forget(self, device: str) -> dict[str, Any]:
        """Remove what a device reported."""
        return dict(self.post(f"/devices/{_part(device)}/forget"))

    def _bring(self, path: str, file: Path) -> str:
        """Write what is at a path of the console to a file; its digest."""
        mark = hashlib.sha256()
        with file.open("wb") as out:
            for part in self._http.download(path):
                mark.update(part)
                out.write(part)
        return mark.hexdigest()

    def _enter(self) -> None:
        """Sign in, once."""
        if self._http.session:
            return
        link, self._link = self._link, ""
        if link:
            self._http.sign_in_by_link(link)
        elif self._certified:
            self._http.sign_in_by_certificate()

    def _all(
        self,
        path: str,
        listed: str,
        key: str | tuple[str, ...],
        limit: int | None,
        filters: Mapping[str, Any],
    ) -> Rows:
        """The rows of all pages, each once: a list may move on between two pages."""
        keys = (key,) if isinstance(key, str) else key
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        page = pages = 1
        while page <= pages and (limit is None or len(found) < limit):
            answer = self.get(path, page=page, **filters)
            for row in answer[listed]:
                found.setdefault(tuple(row[one] for one in keys), row)
            pages, page = int(answer["pages"]), page + 1
        return Rows(list(found.values())[:limit])


def _part(name: str) -> str:
    return quote(name, safe="")
