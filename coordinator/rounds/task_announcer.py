"""Publishes the task on ``b/task``, signed if there is a root."""

import asyncio

import structlog

from coordinator.messaging.sender import Sender
from coordinator.trust.work_signer import WorkSigner
from protocol.errors import Misconfigured
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from protocol.topics import Kind

log = structlog.get_logger(__name__)


class TaskAnnouncer:
    """The announcer of one coordinator's task."""

    def __init__(self, post: Sender, signer: WorkSigner) -> None:
        self._post = post
        self._signer = signer
        self._published: TaskAnnouncement | None = None

    async def say(self, task: Task, *, unless_published: bool = False) -> bool:
        """Publish the task, unless it cannot be signed, because devices would refuse it.

        Args:
            task: as it is announced.
            unless_published: do nothing if the very same announcement was published last.

        Returns:
            Whether it was published.

        Raises:
            Transient: the broker is gone, or the disk is full.
        """
        announcement = TaskAnnouncement.of(task)
        try:
            announcement = await asyncio.to_thread(self._signer.task, announcement)
        except Misconfigured as error:
            log.warning("task_not_signed", why=str(error))
            return False
        if unless_published and announcement == self._published:
            return False
        await self._post.broadcast(Kind.TASK, announcement)
        self._published = announcement
        return True
