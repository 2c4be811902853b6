"""Whether bundles must be signed on this device, and whether the fleet's root is valid.

The root is verified in a child process: the library that does it may crash here (``imports``).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.findings import Finding, fail, ok, warn
from edge_agent.trust.updater import UNSIGNED, root_file
from protocol.trust.metadata import unix
from runtime import exit_codes
from runtime.process import time_limit

TIMEOUT_S: Final = 60.0
_LOOK: Final = """
import json, pathlib, sys
from edge_agent.trust.updater import begin
from protocol.errors import LichenError
given = {given!r}
try:
    root = begin(pathlib.Path(given[0]), given[1] and pathlib.Path(given[1])).root.said
except LichenError as error:
    print(json.dumps({{"wrong": str(error)}}))
else:
    role = root.roles["root"]
    print(json.dumps({{"version": root.version, "expires": root.expires, "threshold": role.threshold}}))
"""


@dataclass(frozen=True)
class Rooted:
    """Result of the probe.

    Attributes:
        path: of the root; None: there is none.
        version: of the root, if it is valid.
        threshold: how many of its keys signed it.
        expires: its date.
        wrong: what is wrong with the file.
        status: exit status of the process that verified it, if it crashed; None with ``died``: it timed out.
        died: whether that process gave no answer.
    """

    path: Path | None = None
    version: int = 0
    threshold: int = 0
    expires: str = ""
    wrong: str = ""
    status: int | None = 0
    died: bool = False


def probe(settings: AgentSettings) -> Rooted:
    """Find the root and verify it."""
    path = root_file(settings.state_dir, settings.trust_file)
    if path is None:
        return Rooted()
    named = None if settings.trust_file is None else str(settings.trust_file)
    status, said = time_limit.child(_LOOK.format(given=(str(settings.state_dir), named)), TIMEOUT_S)
    try:
        found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return Rooted(path, status=status, died=True, wrong=said.strip()[-200:])
    return Rooted(path, **found)


def judge(found: Rooted, *, infers: bool, wall: float) -> list[Finding]:
    """One finding.

    Args:
        found: by :func:`probe`.
        infers: whether this agent runs models at all.
        wall: now, Unix seconds.
    """
    check = "trust.root"
    if found.path is None and not infers:
        return [ok(check, "no root of signatures, and no model is run here")]
    if found.path is None:
        words, _, todo = UNSIGNED.partition("; ")
        return [warn(check, words, todo)]
    if found.died:
        how = "no answer" if found.status is None else f"exit status {found.status}: {found.wrong}"
        words = f"{found.path}: its signatures could not be verified: {how}"
        return [fail(check, words, "see what imports.cryptography says")]
    if found.wrong:
        todo = "copy root.json from the coordinator's machine again (lichen coordinator trust status)"
        return [fail(check, found.wrong, todo, exit_codes.CONFIG)]
    words = f"{found.path}: root {found.version}, signed by {found.threshold} of its keys, is sound"
    if unix(found.expires) <= wall:
        words += f"; it expired on {found.expires}, a newer one must come with the next model"
    return [ok(check, f"{words}; only signed models are run")]
