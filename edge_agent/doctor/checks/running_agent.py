"""The connection of a running agent, as it reports it, if the doctor must not connect beside it.

A broker that makes the certificate's name the client id (docs/identity.md) accepts one connection for each
certificate: the doctor's would end the agent's, and with it what the broker has queued for the agent.
"""

from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.status.status_file import read
from edge_agent.storage.agent_storage import LOCK_FILE
from runtime.storage.folder_lock import is_locked

_UNKNOWN: Final = "its status cannot be read"


def link_of(settings: AgentSettings) -> str | None:
    """A running agent's report on its link, if it uses a certificate; None: connect."""
    if settings.mqtt.tls is None or settings.mqtt.tls.cert_file is None:
        return None
    owned = is_locked(settings.state_dir / LOCK_FILE)
    try:
        alive, found = read(settings)
    except (OSError, ValueError):
        return None if owned is False else _UNKNOWN
    return str(found.get("link") or _UNKNOWN) if alive else None
