"""Two tasks of a device that name the same backbone: it is fetched and stored once, and each may end."""

from pathlib import Path

import numpy as np
import pytest

from edge_agent.agent import Agent
from models.backbones import files
from models.backbones.views import announced
from models.data.streams.recording import Recording, Stream, write_npz
from tests.e2e.test_agent_e2e import write_config
from tests.e2e.test_several_tasks import coordinators, device
from tests.support.backbones import HEIGHT, WIDTH, backbone_task, sensed_by, write
from tests.support.network.brokers import broker
from tests.support.services import until

__all__ = ["broker"]
TABLES = """
[[tasks]]
name = "steps"
[[source]]
kind = "replay"
file = "eyes.npz"
speed = 10
loop = true
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes find the tests' worker."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def images(path: Path) -> None:
    t = 0.05 + np.arange(50) / 5
    pixels = np.random.default_rng(1).integers(0, 255, (50, HEIGHT * WIDTH)).astype(np.uint8)
    labels = np.arange(0, 10.0), np.arange(10) % 2
    write_npz(path, Recording({"camera": Stream(t, pixels, size=(1, HEIGHT, WIDTH))}, *labels))


def made(agent: Agent) -> int:
    """Windows that a task has features of."""
    found = agent.backbones.status()["backbones"].get("camera", {"windows": 0})
    return int(found["windows"])


@pytest.mark.long
async def test_a_backbone_of_two_tasks_is_fetched_once_stored_once_and_stays_for_the_other(
    tmp_path: Path, broker: object
) -> None:
    data = write(tmp_path / "eye.onnx").read_bytes()
    main_task = announced(files.prepare(backbone_task(), tmp_path))
    steps_task = main_task.model_copy(update={"name": "steps", "seed": 5})
    digest = sensed_by(main_task)[1].sha256 or ""
    images(tmp_path / "eyes.npz")
    config = write_config(tmp_path, broker.port, TABLES)  # type: ignore[attr-defined]
    async with coordinators(broker) as (main, steps), device(config) as (agent, others):
        main.put(data)
        steps.put(data)
        await steps.until(lambda: steps.states, 30)  # the task runs
        await main.announce(main_task)
        await steps.announce(steps_task)
        further = others.tasks[0].agent
        assert further is not None
        await until(lambda: made(agent) > 2 and made(further) > 2, 60)
        assert [*main.fetched, *steps.fetched].count(digest) == 1
        mine, theirs = (one.storage.blobs for one in (agent, further))
        assert mine.path(digest).samefile(theirs.path(digest))
        assert mine.total_bytes() + theirs.total_bytes() <= len(data) + 1

        await steps.withdraw()
        await until(lambda: further.tasks.workspace is None and not further.backbones.status()["backbones"])
        for store in (mine, theirs):
            store.collect((), 0)
        assert (mine.has(digest), theirs.has(digest)) == (True, False)
        assert mine.total_bytes() == len(data)
        have = made(agent)
        await until(lambda: made(agent) > have, 30)

        await steps.announce(steps_task)
        await until(lambda: made(further) > 2, 30)
        assert [*main.fetched, *steps.fetched].count(digest) == 1, "it was here"
