"""The announcement of a task between releases: what is newer is ignored, or refused in words."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from edge_agent.agent import Agent
from edge_agent.config.agent import read
from edge_agent.opening import open_agent
from edge_agent.sources.registry import open_sources
from edge_agent.tasks.task_store import TASK_FILE
from protocol.errors import Misconfigured, Reason, Refused
from protocol.messages import State, decode, encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.features import FEATURES, needed
from protocol.tasks.folding import AdaptiveClip, Aggregator, LocalPrivacy, Privacy, Robust, SecureAggregation
from protocol.tasks.kinds import KINDS
from protocol.tasks.labelling import LabelRule
from protocol.tasks.links import CodecName, Uplink
from protocol.tasks.network import Encoder, Network, Package
from protocol.tasks.options import KnowledgeGraphTask
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Target, Task, Window
from runtime.clock import SystemClock
from runtime.mqtt.link import Message
from runtime.settings.load import load_toml
from tests.support.agent.data import toy_task, write_toy
from tests.support.backbones import backbone_task

TOPIC = "lichen/v1/f/b/task"
ACC = Modality(name="acc", channels=3, rate_hz=50)
OTHER_KINDS = (
    Modality(name="mic", kind="sound", channels=1, rate_hz=16_000),
    Modality(name="camera", kind="image", channels=3, height=96, width=96, rate_hz=5),
    Modality(name="embedding", kind="vector", channels=384, rate_hz=1),
    Modality(name="remark", kind="text", channels=1024, rate_hz=1),
)


def make(folder: Path) -> Agent:
    write_toy(folder, 30)
    config = folder / "agent.toml"
    config.write_text(
        f'state_dir = "{folder}/state"\ncache_dir = "{folder}/cache"\nfleet = "f"\ndevice = "d"\n'
        '[[source]]\nkind = "replay"\nfile = "toy.npz"\n'
    )
    for name in ("state", "cache"):
        (folder / name).mkdir(exist_ok=True)
    return open_agent(read(config), open_sources(read(config), config, None, SystemClock()), SystemClock())


def newer(task: Task, *, needs: tuple[str, ...] = (), **keys: Any) -> bytes:
    """What a newer coordinator says: further keys everywhere, further members, perhaps a feature."""
    said = json.loads(encode(TaskAnnouncement.of(task)))
    inner = json.loads(said["task"]) | keys
    inner["modalities"] = [{**one, "colour": "red"} for one in inner["modalities"]]
    inner["window"] = {**inner.get("window", {}), "taper": 0.5}
    inner["rounds"] = {**inner.get("rounds", {}), "bandit": {"memory": 3}}
    said |= {"task": json.dumps(inner), "needs": [*said["needs"], *needs], "signature": {"by": "x"}}
    return json.dumps(said).encode()


def test_what_has_its_default_is_not_announced() -> None:
    task = toy_task()
    said = json.loads(TaskAnnouncement.of(task).task)
    assert not {"robust", "aggregator", "uplink", "targets", "seed", "graph"} & set(said)
    assert TaskAnnouncement.of(task).read() == task


def test_keys_of_a_newer_release_are_ignored_on_the_wire_and_refused_in_a_task_file(tmp_path) -> None:
    assert decode(newer(toy_task()), TaskAnnouncement).read() == toy_task()
    file = tmp_path / "task.toml"
    file.write_text(
        'name = "t"\nlabels = ["a", "b"]\n[[modalities]]\nname = "a"\nchannels = 1\nrate_hz = 5\n'
        "[window]\ntaper = 0.5\n[robust]\nfolds = 3\n"
    )
    with pytest.raises(Misconfigured, match=r"(?s)window\.taper: unknown key.*robust\.folds: unknown key"):
        load_toml(Task, file)


def test_every_feature_that_a_task_can_need_has_a_row_and_every_row_is_needed_by_some_task() -> None:
    gone = Modality(name="gone", channels=1, rate_hz=5, input=False)
    tasks = [
        Task(name="t", graph=KnowledgeGraphTask()),
        toy_task(packages=(Package(name="radar", version="1", sha256="0" * 64),)),
        backbone_task(),
        toy_task(
            privacy=Privacy(clip=1.0, noise_multiplier=1.0, adaptive_clip=AdaptiveClip(count_noise=1.0))
        ),
        toy_task(local_privacy=LocalPrivacy(clip=1.0, noise_multiplier=1.0)),
        toy_task(secure_aggregation=SecureAggregation()),
        toy_task(secure_aggregation=SecureAggregation(), privacy=Privacy(clip=1.0, noise_multiplier=1.0)),
        *(toy_task(uplink=Uplink(codec=codec)) for codec in get_args(CodecName)),
        *(toy_task(window=Window(label_rule=rule)) for rule in get_args(LabelRule)),
        *(
            Task(
                name="t",
                labels=("a", "b"),
                modalities=(modality, gone),
                window=Window(context_s=60),
                network=Network(encoders={modality.name: Encoder(kind=encoder)}),
                targets=(
                    Target(name="one", labels=("c", "d")),
                    Target(name="two", kind="regression"),
                    Target(name="three", kind="generation", modality="gone"),
                ),
            )
            for modality in (ACC, *OTHER_KINDS)
            for encoder in KINDS[modality.kind].encoders
        ),
    ]
    assert {name for task in tasks for name in needed(task)} == set(FEATURES)


def test_what_only_the_coordinator_goes_by_is_not_announced() -> None:
    rounds = Rounds(selection="bandit", min_windows=7)
    own = toy_task(robust=Robust(fold="median"), aggregator=Aggregator(kind="fedadam"), rounds=rounds)
    announcement = TaskAnnouncement.of(own)
    assert not [word for word in ("median", "fedadam", "bandit") if word in announcement.task]
    assert announcement.read() == toy_task(rounds=Rounds(min_windows=7))


async def test_an_agent_does_what_it_can_and_says_in_words_what_it_lacks(tmp_path) -> None:
    agent = make(tmp_path)
    await agent.dispatcher.handle(Message(TOPIC, newer(toy_task(), retries=3), True))
    assert agent.tasks.workspace.task == toy_task()
    assert agent.reporter.state().refuses is None
    for payload, words in (
        (newer(toy_task(seed=3), needs=("taper",)), "the task needs taper, which this lichen does not know"),
        (
            newer(toy_task(seed=4), network={"encoders": {"acc": {"kind": "gru"}}}),
            "network.encoders.acc.kind",
        ),
        (b'{"kind":"task","task":{"name":"t"}}', "task.task: Input should be a valid string"),
    ):
        with pytest.raises(Refused, match=words):
            await agent.dispatcher.handle(Message(TOPIC, payload, True))
        assert words in agent.reporter.state().refuses
        assert agent.tasks.workspace.task == toy_task(), "the one before stays"
    await agent.dispatcher.handle(Message(TOPIC, newer(toy_task()), True))
    assert agent.reporter.state().refuses is None
    agent.close()


async def test_a_task_of_a_newer_release_on_disk_is_done_or_refused_and_loses_no_key(tmp_path) -> None:
    agent = make(tmp_path)
    await agent.dispatcher.handle(Message(TOPIC, newer(toy_task(seed=5)), True))
    kept = agent.settings.state_dir / TASK_FILE
    assert json.loads(json.loads(kept.read_text())["task"])["window"]["taper"] == 0.5
    agent.close()
    again = make(tmp_path)
    await again.start()
    assert again.tasks.workspace.task == toy_task(seed=5)
    again.close()
    kept.write_bytes(newer(toy_task(seed=5), needs=("taper",)))
    lacking = make(tmp_path)
    await lacking.start()
    assert lacking.tasks.workspace is None
    assert "the task needs taper" in decode(encode(lacking.reporter.state()), State).refuses
    lacking.close()
    kept.write_bytes(b"\x00" * 40)  # a power cut, and no other release: it is asked for again
    damaged = make(tmp_path)
    assert damaged.reporter.state().refuses is None
    damaged.close()


def test_a_refusal_names_the_reason_that_the_coordinator_repeats() -> None:
    with pytest.raises(Refused) as refused:
        decode(newer(toy_task(), needs=("taper", "codec:int1")), TaskAnnouncement).read()
    assert refused.value.reason is Reason.UNKNOWN_TASK
    assert "taper, codec:int1" in refused.value.detail
