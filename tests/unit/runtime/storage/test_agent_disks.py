"""The agent on a disk that fails it while it runs."""

import errno
import os

from structlog.testing import capture_logs

from protocol.messages import Receipt, encode
from protocol.topics import Kind, device_topic
from runtime.mqtt.link import Message
from runtime.storage.disk import DISK, Disk
from tests.unit.edge_agent.messaging.test_agent_session import make

DIGEST = "a" * 64


class ReadOnly(Disk):
    def write(self, path, *_given, **_how):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


async def test_a_receipt_on_a_disk_that_has_become_read_only_ends_nothing(tmp_path) -> None:
    """It ended the agent with 78, which systemd does not start again: there was no inference any more."""
    agent = make(tmp_path)
    agent.storage.spool.put(task="t", round_=1, digest=DIGEST, payload=b"x", carry=None)
    receipt = Receipt(task="t", round=1, digest=DIGEST, status="accepted")
    token = DISK.set(ReadOnly())
    try:
        with capture_logs() as logs:
            await agent.dispatcher._take(Message(device_topic("f", "d", Kind.RECEIPT), encode(receipt)))
    finally:
        DISK.reset(token)
    assert "is read-only" in next(one["why"] for one in logs if one["event"] == "message_not_handled")
    assert [one.digest for one in agent.storage.spool.pending()] == [DIGEST], (
        "it is sent, and answered, again"
    )
    agent.close()
