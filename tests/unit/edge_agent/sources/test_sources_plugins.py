"""Kinds of sources of other packages: real entry points of a distribution on the path."""

import sys
from contextlib import aclosing

import numpy as np
import pytest
from structlog.testing import capture_logs

from edge_agent.sources import REGISTRY, plugins
from edge_agent.sources.base import ChecksTask, FollowsTask, ReportsStatus
from edge_agent.sources.registry import open_source
from edge_agent.sources.task_match import matching_modalities
from protocol.errors import Misconfigured, Transient
from protocol.tasks.task import Modality
from runtime.clock import SystemClock
from tests.support.agent.data import toy_task
from tests.support.tasks import small_task

ECHO = small_task((Modality(name="echo", kind="text", channels=7, rate_hz=1),))
MODULE = """
import numpy as np
from pydantic import BaseModel, ConfigDict
from edge_agent.sources.base import SourceKind
from models.data.streams.batches import SampleBatch

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    angle_deg: float
    break_after: int = 1000
    channels: int = 2

class Radar:
    def __init__(self, settings, known, clock):
        if settings.angle_deg > 90:
            raise ZeroDivisionError("too steep")
        self.name, self.channels, self._settings = "radar", {"echo": settings.channels}, settings
    @property
    def state(self):
        return "turns" if self._settings.angle_deg < 50 else 1 / 0
    @property
    def counters(self):
        return {"turns": 3 if self._settings.angle_deg < 50 else "many"}
    def channels_in(self, task):
        return {m.name: m.channels for m in task.modalities if m.name == "echo"} or self.channels
    def doubts(self, task):
        return [f"{task.name}: {1 / (60 - self._settings.angle_deg)}"]
    async def samples(self):
        for i in range(self._settings.break_after):
            yield SampleBatch("echo", np.array([float(i)]), np.zeros((1, 2), np.float32))
            yield SampleBatch("echo", np.array([float(i)]), np.zeros((1, 9), np.float32))
            yield "nonsense"
        raise KeyError("lost")

KIND = SourceKind(Settings, Radar)
FACTORY = 7
"""
POINTS = """[lichen.sources]
radar = lichen_radar:KIND
crashes = lichen_crashes:KIND
absent = lichen_not_there:KIND
seven = lichen_radar:FACTORY
replay = lichen_radar:KIND
"""


@pytest.fixture
def radar(tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "lichen_radar-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lichen-radar\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(POINTS)
    (site / "lichen_radar.py").write_text(MODULE)
    (site / "lichen_crashes.py").write_text("raise RuntimeError('bad day')\n")
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in ("lichen_radar", "lichen_crashes"):
        sys.modules.pop(name, None)


def opened(folder, **table):
    return open_source(table, "agent.toml: source[0]", folder, None, SystemClock())


@pytest.mark.usefixtures("radar")
async def test_a_kind_of_another_package_works_and_what_it_does_wrong_costs_it_alone(tmp_path):
    source = opened(tmp_path, kind="radar", angle_deg=3.0, break_after=2)
    assert source.channels == {"echo": 2}
    async with aclosing(source.samples()) as stream:
        got = [await anext(stream), await anext(stream)]
        words = r"'radar' comes from lichen-radar 1\.2 .* failed: KeyError: 'lost'"
        with pytest.raises(Transient, match=words):
            await anext(stream)
    assert [float(b.t[0]) for b in got] == [0, 1]
    assert all(np.shape(b.values) == (1, 2) for b in got)
    assert source.counters == {"turns": 3, "malformed_batches": 4}
    assert source.state == "turns"
    assert isinstance(source, ReportsStatus)
    assert isinstance(source, ChecksTask)
    assert isinstance(source, FollowsTask)


@pytest.mark.usefixtures("radar")
def test_a_kind_may_be_as_large_as_the_task_says(tmp_path):
    source = opened(tmp_path, kind="radar", angle_deg=4.0)
    assert matching_modalities(ECHO, [source]) == ("echo",)
    assert source.channels == {"echo": 2}, "a task that is only looked at changes nothing"
    source.follow(ECHO)
    assert source.channels == {"echo": 7}


@pytest.mark.usefixtures("radar")
def test_a_kind_that_fails_at_telling_of_itself_is_said_and_stops_nothing(tmp_path):
    source = opened(tmp_path, kind="radar", angle_deg=60.0)
    with capture_logs() as logs:
        assert source.state == ""
        assert source.counters == {"malformed_batches": 0}
        assert source.doubts(toy_task()) == []
        source.follow(toy_task())
    assert ["ZeroDivisionError" in logs[0]["error"], "ZeroDivisionError" in logs[-1]["error"]] == [True, True]
    assert opened(tmp_path, kind="radar", angle_deg=10.0).doubts(toy_task()) == ["toy: 0.02"]


@pytest.mark.usefixtures("radar")
@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "radar"}, r"angle_deg: missing"),
        ({"kind": "radar", "angel_deg": 1}, r"angel_deg: unknown key; did you mean 'angle_deg'"),
        ({"kind": "radar", "angle_deg": 99}, r"lichen-radar 1\.2.*failed: ZeroDivisionError: too steep"),
        ({"kind": "radar", "angle_deg": 1, "channels": 0}, r"its channels are \{'echo': 0\}"),
        ({"kind": "crashes"}, r"kind: 'crashes' comes from lichen-radar 1\.2.*RuntimeError: bad day"),
        ({"kind": "absent"}, r"'absent' comes from.*ModuleNotFoundError"),
        ({"kind": "seven"}, r"is a int, not an edge_agent\.sources\.base\.SourceKind"),
        ({"kind": "radra"}, r"'radra' is not a kind of source; known: .*radar.*did you mean 'radar'"),
    ],
)
def test_what_is_wrong_names_the_package(tmp_path, table, words):
    with pytest.raises(Misconfigured, match=r"agent\.toml: source\[0\].*" + words):
        opened(tmp_path, **table)


@pytest.mark.usefixtures("radar")
def test_a_broken_package_stops_no_other_kind_and_takes_no_name_of_ours(tmp_path):
    assert {"radar", "crashes", "absent"} <= set(plugins.entry_points_by_kind())
    assert "radar" not in REGISTRY.kinds()
    assert opened(tmp_path, kind="system").name == "system"
    with pytest.raises(Misconfigured, match="file: missing"):
        opened(tmp_path, kind="replay")
