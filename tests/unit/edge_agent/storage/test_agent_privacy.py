"""One privacy account for a device, over tasks, names, noise, calls-off and damage; and its floors."""

import asyncio
import math
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.agent import LearnSettings
from edge_agent.storage.privacy_account import PRIVACY_FILE, PrivacyAccount
from edge_agent.tasks.privacy_floors import require_private
from edge_agent.training.learner import Learner
from edge_agent.windows.window_sets import windows_of_recording
from models.data.streams.recording import Recording, Stream
from models.privacy.account import LIMIT, Account, Ledger, epsilon_of, overlap, span_of
from models.privacy.device_account import DeviceAccount, StoreAccount
from protocol.errors import Misconfigured, Refused
from protocol.frames.frame import decode_frame
from protocol.frames.headers import Manifest, UpdateHeader
from protocol.messages import Offer
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Modality, Task, Window
from tests.support.agent.data import toy_task
from tests.support.services import until
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, make
from tests.unit.edge_agent.training.test_agent_prototypes import TASK, Cloud, graph, learning, offer
from tests.unit.edge_agent.windows.test_agent_store import windows

DELTA = 1e-5
RHO = 0.5
"""Of one release at dp_noise 1, for one modality."""


def task(noise: float = 1.0, **changes: object) -> Task:
    config = {**TASK.config, "min_count": 1, "upload": "prototypes", "dp_noise": noise}
    return TASK.model_copy(update={"config": config, **changes})


def one_modality(the_task: Task = TASK):
    """So that a window's rho is one release's."""
    given = windows([0, 2] * 20, task=the_task)
    given.present_BM[:, 1] = False
    return given


@asynccontextmanager
async def device(folder: Path, the_task: Task, *, learn: str = "", given=None):
    """A learner of this device, with the same windows each time; one context a life."""
    where = learning(
        folder, one_modality() if given is None else given, the_task, ("acc",), learn=f"[learn]\n{learn}\n"
    )
    async with where as (learner, cloud):
        yield learner, cloud


def asked(cloud: Cloud, the_task: Task, round_: int = 1) -> Offer:
    refs = dict(Manifest.model_validate_json(cloud.here[cloud.version().digest]).blobs)
    manifest = Manifest(task=the_task.name, method="qqr", version=0, blobs=refs)
    base = cloud.put(manifest.model_dump_json().encode())
    made = offer(cloud, round_, base=base, graphs={"acc": cloud.put(graph("acc", the_task))})
    return made.model_copy(update={"task": the_task.name})


async def released(learner: Learner, cloud: Cloud, the_task: Task, round_: int = 1) -> UpdateHeader:
    before = learner.trained
    learner.offer(asked(cloud, the_task, round_))
    await until(lambda: learner.trained == before + 1)
    newest = [entry for entry in learner.storage.spool.pending() if entry.task == the_task.name][-1]
    return decode_frame(learner.storage.spool.payload(newest.digest), UpdateHeader)[0]


def told(header: UpdateHeader) -> tuple[float | None, float | None]:
    return header.metrics.get("epsilon"), header.metrics.get("epsilon_moment")


def bounds(window: float, moment: float) -> object:
    return pytest.approx((epsilon_of(window, DELTA), epsilon_of(moment, DELTA)), rel=1e-4)


async def test_a_moment_is_in_three_windows_and_costs_nine_times_the_rho(tmp_path):
    assert overlap(span_of(TASK), TASK.window.stride_s) == 3
    async with device(tmp_path, task()) as (learner, cloud):
        header = await released(learner, cloud, task())
        assert told(header) == pytest.approx((5.298526, 18.895577), abs=1e-4)
        assert learner.storage.privacy.words == {
            "a window": "epsilon 5.3 at delta 1e-05, at most",
            "a moment": "epsilon 18.9 at delta 1e-05, at most",
            "tasks": ["toy"],
        }


@pytest.mark.parametrize("rate_hz", [7.0, 25.0, 51.3, 60.0])
def test_no_sample_is_in_more_windows_than_a_moment_is_charged_for(rate_hz):
    """Also beside a window a sample may be in its content: its first and last points are interpolated."""
    rng, most, moment = np.random.default_rng(0), 0, overlap(span_of(TASK), TASK.window.stride_s)
    for gaps in (False, True):
        t = rng.uniform(0, 1 / rate_hz) + np.arange(int(16 * rate_hz)) / rate_hz
        t = t[(t % 1.9 < 1.3)] if gaps else t
        values = rng.normal(size=(len(t), 3)).astype(np.float32)
        before = windows_of_recording(TASK, Recording({"acc": Stream(t, values)}))
        for at in np.flatnonzero((t > 5) & (t < 9)):
            other = values.copy()
            other[at] += 1
            after = windows_of_recording(TASK, Recording({"acc": Stream(t, other)}))
            most = max(most, int((before.x["acc"] != after.x["acc"]).any(axis=(1, 2)).sum()))
    assert math.ceil(TASK.window.length_s / TASK.window.stride_s) < most <= moment


@pytest.mark.parametrize(
    "modality",
    [
        Modality(name="m", kind="sound", channels=1, rate_hz=200),
        Modality(name="m", kind="vector", channels=3, rate_hz=5),
        Modality(name="m", kind="image", channels=1, height=2, width=2, rate_hz=2),
    ],
    ids=lambda one: one.kind,
)
@pytest.mark.parametrize("offset", [0.0, 0.0013])
def test_no_sound_and_no_image_is_in_more_windows_than_a_moment_is_charged_for(modality, offset):
    """Windows touch each other, and hardly a gap is bridged."""
    window = Window(length_s=1.0, stride_s=0.5, max_gap_s=0.001, min_coverage=1.0)
    task = Task(name="t", labels=("a", "b"), modalities=(modality,), window=window)
    rng, most, moment = np.random.default_rng(0), 0, overlap(span_of(task), window.stride_s)
    t = offset + np.arange(int(6 * modality.rate_hz)) / modality.rate_hz
    values = rng.integers(0, 99, (len(t), modality.sample_values)).astype(np.float32)
    before = windows_of_recording(task, Recording({"m": Stream(t, values)}))
    for at in np.flatnonzero((t > 2) & (t < 4)):
        other = values.copy()
        other[at] += 1
        after = windows_of_recording(task, Recording({"m": Stream(t, other)}))
        most = max(most, int((before.x["m"] != after.x["m"]).any(axis=(1, 2)).sum()))
    assert 1 <= most <= moment <= 3


async def test_tasks_of_other_names_and_noise_are_charged_to_the_same_windows(tmp_path):
    for number, noise in ((1, 1.0), (2, 2.0)):
        renamed = task(noise, name=f"work{number}")
        async with device(tmp_path, renamed) as (learner, cloud):
            header = await released(learner, cloud, renamed)
    assert told(header) == bounds(RHO + RHO / 4, 9 * (RHO + RHO / 4))


async def test_a_task_that_cuts_the_same_streams_otherwise_adds_up(tmp_path):
    async with device(tmp_path, task()) as (learner, cloud):
        await released(learner, cloud, task())
    other = task(name="longer", window=Window(length_s=5.12, stride_s=1.28))
    async with device(tmp_path, other, given=one_modality(other)) as (learner, cloud):
        header = await released(learner, cloud, other)
    # A moment: in 3 windows of the first and 6 of the other. A long window touches 9 of the short ones.
    assert told(header) == bounds((1 + 9**2) * RHO, (3**2 + 6**2) * RHO)


async def test_what_goes_without_noise_is_infinite_and_a_limit_refuses_what_comes_after(tmp_path):
    bare = task(0.0, name="bare")
    async with device(tmp_path, task()) as (learner, cloud):
        await released(learner, cloud, task())
    async with device(tmp_path, bare) as (learner, cloud):
        assert told(await released(learner, cloud, bare)) == (None, None)
        assert learner.storage.privacy.words["a moment"] == "epsilon is infinite"
        assert learner.storage.privacy.words["sent without noise"] == ["bare"]
    async with device(tmp_path, task()) as (learner, cloud):
        assert told(await released(learner, cloud, task(), 2)) == (None, None)
    async with device(tmp_path, task(), learn="max_epsilon = 100.0") as (learner, cloud):
        learner.offer(asked(cloud, task(), 3))
        await until(lambda: learner.failures == 1)
        assert "bare" in learner.why
        assert "learn.max_epsilon" in learner.why
        assert learner.trained == 0


async def test_the_devices_limit_ends_releases_of_all_tasks_together(tmp_path):
    two = epsilon_of(9 * 2 * 2 * RHO, DELTA)  # room for two releases of two modalities
    limit = f"max_epsilon = {two + 1e-6}"
    for number in (1, 2):
        renamed = task(name=f"work{number}")
        async with device(tmp_path, renamed, learn=limit) as (learner, cloud):
            await released(learner, cloud, renamed)
    third = task(name="work3")
    async with device(tmp_path, third, learn=limit) as (learner, cloud):
        learner.offer(asked(cloud, third))
        await until(lambda: learner.failures == 1)
        assert "the privacy budget of its windows is spent" in learner.why
        assert "learn.max_epsilon" in learner.why
        assert not [entry for entry in learner.storage.spool.pending() if entry.task == "work3"]


async def test_a_damaged_account_is_not_an_empty_one(tmp_path):
    async with device(tmp_path, task()) as (learner, cloud):
        await released(learner, cloud, task())
    file = tmp_path / "state" / PRIVACY_FILE
    damaged = file.read_bytes().replace(b"toy", b"tog")
    file.write_bytes(damaged)
    for _ in range(2):
        async with device(tmp_path, task()) as (learner, cloud):
            learner.offer(asked(cloud, task(), 2))
            await until(lambda: learner.failures == 1)
            assert "the privacy account is damaged" in learner.why
            assert "damaged" in learner.storage.privacy.words["account"]
    bare = task(0.0, name="bare")
    async with device(tmp_path, bare) as (
        learner,
        cloud,
    ):  # promises nothing
        await released(learner, cloud, bare)
    assert file.read_bytes() == damaged, "a person looks at it"


async def test_a_training_that_is_called_off_while_it_is_written_stays_in_the_account(tmp_path, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    async with device(tmp_path, task()) as (learner, cloud):
        put, spooled, kicks = learner.storage.spool.put, list[int](), list[int]()
        monkeypatch.setattr(learner.metrics, "add", lambda round_, _: spooled.append(round_))
        monkeypatch.setattr(learner.outbox, "send_all", lambda: kicks.append(1))

        def slowly(**what: object) -> None:
            if what["round_"] == 1:
                writing.set()
                assert go_on.wait(10)
            put(**what)

        monkeypatch.setattr(learner.storage.spool, "put", slowly)
        given = learner.storage.privacy.with_account
        read: list[int] = []
        monkeypatch.setattr(
            learner.storage.privacy, "with_account", lambda *of: (read.append(1), given(*of))[1]
        )
        learner.offer(asked(cloud, task(), 1))
        await until(writing.is_set)
        learner.offer(asked(cloud, task(), 2))
        await asyncio.sleep(0.2)
        assert len(read) == 1, "the next training read an account that is being written"
        go_on.set()
        await until(lambda: {entry.round for entry in learner.storage.spool.pending()} == {1, 2})
        await until(lambda: learner.trained == 1)
        assert (spooled, len(kicks)) == ([1, 2], 2), (
            "an update that is in the spool is sent, also of a training called off"
        )
    account = PrivacyAccount(tmp_path / "state" / PRIVACY_FILE, LearnSettings())
    assert account.words["a window"].startswith(f"epsilon {epsilon_of(2 * RHO, DELTA):.3g} ")


FLOORS = {
    "less noise": ({"min_dp_noise": 2.0}, 1.0, "adds noise of 1.*asks for 2 .learn.min_dp_noise"),
    "no noise": ({"min_dp_noise": 2.0}, 0.0, "adds no noise.*learn.min_dp_noise"),
    "no bound": ({"max_epsilon": 20.0}, 0.0, "adds no noise.*no bound.*allows 20 .learn.max_epsilon"),
    # two modalities, two windows: rho 4
    "too dear": (
        {"max_epsilon": 17.0},
        1.0,
        "a single round takes a moment.* to epsilon 29.4 at delta",
    ),
}


@pytest.mark.parametrize("case", FLOORS)
async def test_a_task_below_the_floors_is_refused_in_words_before_anything_is_done(tmp_path, case):
    learn, noise, words = FLOORS[case]
    with pytest.raises(Misconfigured, match=words):
        require_private(task(noise), LearnSettings.model_validate(learn))
    floors = "[learn]\n" + "".join(f"{key} = {value}\n" for key, value in learn.items())
    agent = make(tmp_path, text=BASIC + floors, roles=["train"])
    announced = TaskAnnouncement.of(task(noise))
    try:
        with pytest.raises(Refused, match=words):
            await agent.work.act_on(announced)
        assert agent.tasks.workspace is None
        assert "learn." in (agent.reporter.state().refuses or "")
    finally:
        agent.close()


async def test_a_device_that_only_predicts_sends_nothing_that_a_floor_could_stop(tmp_path):
    agent = make(tmp_path, text=BASIC + "[learn]\nmin_dp_noise = 2.0\n", roles=["observe"])
    try:
        await agent.work.act_on(TaskAnnouncement.of(task(0.0)))
        assert agent.tasks.workspace.task == task(0.0)
        assert agent.reporter.state().refuses is None
    finally:
        agent.close()


def test_other_methods_send_without_noise_and_are_held_to_the_same_floor():
    with pytest.raises(Misconfigured, match="adds no noise"):
        require_private(toy_task(method="disentafl"), LearnSettings(min_dp_noise=0.5))


def test_of_many_window_stores_the_oldest_keep_what_their_dearest_window_spent():
    account = DeviceAccount()
    for number in range(40):
        grid = Window(length_s=2.0, stride_s=2.0 - number / 100)
        private = Account({"acc": Ledger({1: 0.25, 2: 0.5})}).tensors()
        account = account.after(f"store{number}", task(window=grid), private, noised=True)
    assert account.of_stretch().rho == pytest.approx(0.5 * 40 * 4)
    assert account.stores["store0"] == StoreAccount(account.stores["store0"].account, 3.0, 2.0, ("toy",), ())
    assert dict(account.stores["store0"].account.ledgers["acc"].rho) == {}
    assert dict(account.stores["store39"].account.ledgers["acc"].rho) == {1: 0.25, 2: 0.5}


def test_the_limit_is_of_the_longest_windows_that_the_store_ever_released():
    private = Account({"acc": Ledger({}, 0.0)}).tensors()
    short, long = task(), task(window=Window(length_s=2.56, stride_s=1.28, context_s=10.24))
    account = DeviceAccount().after("store", long, private, noised=True)
    assert span_of(long) > span_of(short)
    limits = [account.given("store", one, 8.0, DELTA)[LIMIT][0] for one in (short, long)]
    assert limits[0] == limits[1]
