"""Questions that an application appends to a file -> inference.

New questions are asked at the next poll. Standing questions are asked again when their answers may have
changed: with another model, or with new embeddings after a round. Memory: the last ``MAX_STANDING`` different
questions stand; older ones were answered, and are forgotten.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_agent.inference.question_answers import AskedQuestion
from edge_agent.inference.service import Inference
from edge_agent.inference.serving.served_kinds import ServedCompletion
from edge_agent.knowledge_graph.question_file import Question, QuestionFile
from edge_agent.knowledge_graph.workspace import KnowledgeGraphWorkspace
from edge_agent.storage.private_tensors import PrivateTensors
from edge_agent.tasks.current_task import CurrentTask
from runtime.clock import Clock
from runtime.waits import StatusPart

MAX_STANDING: Final = 1000
_BATCH_SIZE: Final = 64
"""Questions of one batch: as many as one call of the model takes."""


@dataclass(eq=False, repr=False)
class QuestionService(StatusPart):
    """One service.

    Args:
        path: of the file; may be missing at first.
        inference: answers.
        private: knows when training has written other embeddings.
        tasks: knows the present task; nothing is asked unless it is on a knowledge graph.
        clock: paces it.
        poll_s: interval between reads of the file.
    """

    path: Path
    inference: Inference
    private: PrivateTensors
    tasks: CurrentTask
    clock: Clock
    poll_s: float

    def __post_init__(self) -> None:
        self._file = QuestionFile(self.path)
        self._standing: dict[Question, None] = {}
        self._asked_with: object = None

    async def run(self) -> None:
        """Read the file, and ask, for ever."""
        while True:
            await self.poll()
            await self.clock.sleep(self.poll_s)

    async def poll(self) -> None:
        """Ask new questions; all standing ones if their answers may have changed."""
        new = await asyncio.to_thread(self._file.read_new)
        for question in new:
            self._standing.pop(question, None)
            self._standing[question] = None  # newest last
        for old in [*self._standing][:-MAX_STANDING]:
            del self._standing[old]
        model, work = self.inference.model, self.tasks.workspace
        if not isinstance(model, ServedCompletion) or not isinstance(work, KnowledgeGraphWorkspace):
            return
        snapshot, now = work.snapshot, (model.digest, work.task, self.private.revision(work.task.name))
        if snapshot is None:
            return
        questions = new if now == self._asked_with else [*self._standing]
        self._asked_with = now
        for at in range(0, len(questions), _BATCH_SIZE):
            some = tuple(questions[at : at + _BATCH_SIZE])
            self.inference.enqueue(AskedQuestion(work.task, some, snapshot, self.clock.now()))

    def status(self) -> dict[str, Any]:
        """The number of standing questions."""
        return {"questions": len(self._standing), "questions_trouble": self._file.problem}
