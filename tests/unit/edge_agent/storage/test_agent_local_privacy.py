"""Training under ``[local_privacy]`` on an agent: charged before it is sent, over all tasks; then it ends."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.agent import LearnSettings
from edge_agent.storage.agent_storage import open_storage
from edge_agent.storage.privacy_account import PRIVACY_FILE, PrivacyAccount
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.tasks.privacy_floors import require_private
from edge_agent.training.learner import Learner
from edge_agent.windows.workspace import WindowWorkspace
from models.contract import LocalResult
from models.privacy.account import PREFIX, Account, Ledger, epsilon_of
from models.privacy.device_account import DeviceAccount
from models.privacy.local.renyi import epsilon_within, sampled_gaussian
from models.privacy.local.training_plan import TrainingPlan
from models.registry import method
from models.worker.__main__ import do
from protocol.errors import Misconfigured, Transient
from protocol.frames.frame import decode_frame, encode_frame
from protocol.frames.headers import BlobHeader, Manifest, UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.messages import BlobRef, Offer
from protocol.tasks.folding import LocalPrivacy
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Task
from runtime.clock import SystemClock
from tests.support.agent.data import toy_task
from tests.support.agent.parts import learner_of
from tests.support.services import beside, until
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, config, make, read
from tests.unit.edge_agent.training.test_agent_prototypes import Cloud
from tests.unit.edge_agent.windows.test_agent_store import WindowStore, windows

DELTA, NOISE, COUNT, TOGETHER = 1e-5, 1.2, 40, 3
SMALL = Encoder(width=4, depth=1)


def task(name: str = "work", **local: Any) -> Task:
    its = {"clip": 0.5, "noise_multiplier": NOISE, **local}
    return toy_task(
        name=name,
        method="fedavg",
        network=Network(encoders={"acc": SMALL, "gyr": SMALL}, feature_dim=4, hidden_dim=4),
        config={"batch": 10, "epochs": 1},
        local_privacy=LocalPrivacy.model_validate(its),
    )


def epsilon(rounds: int, together: int = 1, delta: float = DELTA) -> float:
    """Of so many rounds: 4 steps, each with a quarter of the windows."""
    return epsilon_within(sampled_gaussian(NOISE, 0.25, 4 * rounds, together), delta)


class InProcess:
    """The worker's own code, without a process."""

    async def run(self, job_dir: Path, _timeout_s: float) -> None:
        await asyncio.to_thread(do, job_dir)

    async def close(self) -> None:
        pass


@asynccontextmanager
async def device(folder: Path, its: Task, *, learn: str = ""):
    """One life of an agent's learner with these windows; state is that of the life before."""
    settings = read(config(folder, BASIC + f"[learn]\n{learn}\n", roles=["train"]))
    settings.state_dir.mkdir(exist_ok=True)
    store = WindowStore(folder / "windows" / its.name, its, 10_000_000)
    if not store.snapshot().total:
        store.add(windows([0, 2] * (COUNT // 2), task=its))
    storage = open_storage(settings, SystemClock())
    cloud = Cloud(storage.blobs)
    work = WindowWorkspace(its, its.modality_names, None, None, store)
    learner = learner_of(settings, work, storage, cloud, SystemClock(), worker=InProcess())
    spent: list[str] = []
    learner.tasks.spend = spent.append
    try:
        async with beside(learner.run(), forever=True):
            yield learner, cloud, spent
    finally:
        storage.close()
        store.close()


def offer(cloud: Cloud, its: Task, round_: int) -> Offer:
    refs = {}
    for blob, tensors in method("fedavg").client().initial(its, 0).items():
        coded = {name: encode(x, Codec.FLOAT32) for name, x in tensors.items()}
        refs[blob] = cloud.put(encode_frame(BlobHeader(name=blob), coded))
    manifest = Manifest(task=its.name, method="fedavg", version=0, blobs=refs)
    base: BlobRef = cloud.put(manifest.model_dump_json().encode())
    return Offer(task=its.name, round=round_, base=base.digest, base_size=base.size, closes_in_s=60)


async def released(learner: Learner, cloud: Cloud, its: Task, round_: int) -> UpdateHeader:
    before = learner.trained
    learner.offer(offer(cloud, its, round_))
    await until(lambda: learner.trained == before + 1, 60)
    newest = [entry for entry in learner.storage.spool.pending() if entry.task == its.name][-1]
    return decode_frame(learner.storage.spool.payload(newest.digest), UpdateHeader)[0]


async def test_rounds_of_all_tasks_are_charged_to_one_store_and_then_the_device_takes_no_part(tmp_path):
    three = epsilon(3, TOGETHER)
    limit = f"max_epsilon = {three + 1e-6}"
    async with device(tmp_path, task(), learn=limit) as (learner, cloud, spent):
        for round_ in (1, 2):
            header = await released(learner, cloud, task(), round_)
        assert header.metrics["epsilon"] == pytest.approx(epsilon(2), rel=1e-6)
        assert header.metrics["epsilon_moment"] == pytest.approx(epsilon(2, TOGETHER), rel=1e-6)
        assert not {"loss", "accuracy"} & set(header.metrics)
        assert set(header.quality.values()) == {1.0}, "measured on what windows hold"
    renamed = task("another")
    async with device(tmp_path, renamed, learn=limit) as (learner, cloud, spent):
        assert learner.storage.privacy.words is not None
        assert learner.storage.privacy.words["tasks"] == ["work"]
        await released(learner, cloud, renamed, 1)
        assert spent == [""]
        learner.offer(offer(cloud, renamed, 2))
        await until(lambda: len(spent) == 2, 60)
        words = (
            f"task 'another': one more update would take a moment of the streams to epsilon "
            f"{epsilon(4, TOGETHER):.3g} at delta 1e-05 over all tasks; at most {three:g}"
        )
        assert spent[1].startswith(words)
        assert "(learn.max_epsilon)" in spent[1]
        assert learner.why == spent[1]
        (wait,) = learner.waits()
        assert wait.why == spent[1]
        assert learner.trained == 1
        assert learner.failures == 0, "nothing was trained for it"
        assert learner.storage.privacy.words["a moment"] == f"epsilon {three:.3g} at delta 1e-05, at most"


async def test_the_task_has_a_limit_of_its_own_which_holds_over_all_tasks(tmp_path):
    its = task("bounded", max_epsilon=epsilon(2, TOGETHER, 1e-6) + 1e-6, delta=1e-6)
    async with device(tmp_path, task()) as (learner, cloud, _):
        await released(learner, cloud, task(), 1)
    async with device(tmp_path, its) as (learner, cloud, spent):
        await released(learner, cloud, its, 1)
        learner.offer(offer(cloud, its, 2))
        await until(lambda: len(spent) == 2, 60)
        assert "(local_privacy.max_epsilon of the task)" in learner.why


async def test_a_kill_between_account_and_spool_leaves_the_update_counted(tmp_path, monkeypatch):
    its = task()
    async with device(tmp_path, its) as (learner, _cloud, _):
        result = LocalResult({}, private=TrainingPlan(0.25, 4).charge())
        _, account = learner.storage.privacy.charge(its, result)

        class KilledError(BaseException):
            """No error of ours: the process ends."""

        with pytest.raises(KilledError), learner.storage.saving(its.name, {}, account):
            raise KilledError
    async with device(tmp_path, its) as (learner, cloud, _):
        header = await released(learner, cloud, its, 1)
        assert header.metrics["epsilon"] == pytest.approx(epsilon(2), rel=1e-6)
        put = learner.storage.spool.put

        def full(**_what: object) -> None:
            raise Transient("no space left on the disk")

        monkeypatch.setattr(learner.storage.spool, "put", full)
        learner.offer(offer(cloud, its, 2))
        await until(lambda: learner.failures == 1, 60)
        monkeypatch.setattr(learner.storage.spool, "put", put)
        words = learner.storage.privacy.words
        assert words is not None
        assert words["a window"].startswith(f"epsilon {epsilon(2):.3g} ")


async def test_a_worker_that_charges_nothing_counts_as_one_without_noise(tmp_path):
    its = task()
    account = PrivacyAccount(tmp_path / PRIVACY_FILE, LearnSettings())
    _, after = account.charge(its, LocalResult({}, private={}))
    assert after is not None
    assert after.without_noise == ("work",)
    strict = PrivacyAccount(tmp_path / PRIVACY_FILE, LearnSettings(max_epsilon=100.0))
    with pytest.raises(Misconfigured, match=r"epsilon inf .* \(work sent without noise\)"):
        strict.charge(its, LocalResult({}, private={}))


def test_floors_hold_for_training_too():
    with pytest.raises(Misconfigured, match=r"adds noise of 1\.2 .*asks for 2 \(learn.min_dp_noise\)"):
        require_private(task(), LearnSettings(min_dp_noise=2.0))
    require_private(task(), LearnSettings(min_dp_noise=1.0, max_epsilon=0.5))
    open_task = toy_task(method="fedavg")
    with pytest.raises(Misconfigured, match="adds no noise"):
        require_private(open_task, LearnSettings(max_epsilon=8.0))


async def test_a_longer_stretch_is_in_more_windows_and_costs_more(tmp_path):
    files = tmp_path / PRIVACY_FILE
    result = LocalResult({}, private=TrainingPlan(0.25, 4).charge())
    for stretch_s, together in ((0.0, 3), (10.0, 11)):
        account = PrivacyAccount(files, LearnSettings(stretch_s=stretch_s))
        made, after = account.charge(task(), result)
        assert made.metrics["epsilon_moment"] == pytest.approx(epsilon(1, together), rel=1e-6)
        assert made.metrics["epsilon"] == pytest.approx(epsilon(1), rel=1e-6)
    assert after is not None
    with account.saved(after):
        assert account.words is not None
        assert "10 s" in account.words


async def test_the_device_says_in_its_state_that_its_privacy_is_spent(tmp_path):
    agent = make(tmp_path, text=BASIC, roles=["train"])
    try:
        assert isinstance(agent.tasks, CurrentTask)
        agent.tasks.spend("its privacy is spent")
        assert agent.reporter.state().refuses == "its privacy is spent"
        agent.tasks.spend("")
        assert agent.reporter.state().refuses is None
    finally:
        agent.close()


def test_prototypes_and_training_of_one_store_add_up_and_the_file_keeps_both(tmp_path):
    its = task()
    prototypes = Account({"acc": Ledger({7: 0.5})}).tensors()
    qqr = toy_task(name="first", method="qqr")
    account = DeviceAccount().after("store", qqr, prototypes, noised=True)
    account = account.after("store", its, TrainingPlan(0.25, 4).charge(), noised=True)
    want = account.of_stretch()
    assert want.rho == 0.5 * TOGETHER**2
    np.testing.assert_allclose(want.curve, sampled_gaussian(NOISE, 0.25, 4, TOGETHER))
    file = PrivacyAccount(tmp_path / PRIVACY_FILE, LearnSettings())
    with file.saved(account):
        pass
    again = PrivacyAccount(tmp_path / PRIVACY_FILE, LearnSettings())
    assert again.words == file.words
    # what a window may still spend on prototypes knows of the training
    limits = [one.given("store", qqr, 40.0, DELTA)[f"{PREFIX}limit"][0] for one in (account, DeviceAccount())]
    assert 0 < limits[0] < limits[1]


def test_an_account_of_before_goes_on_and_one_without_training_is_written_as_before(tmp_path):
    qqr = toy_task(name="first", method="qqr")
    account = DeviceAccount().after("store", qqr, Account({"acc": Ledger({7: 0.5})}).tensors(), noised=True)
    file = PrivacyAccount(tmp_path / PRIVACY_FILE, LearnSettings())
    with file.saved(account):
        pass
    content = json.loads(json.loads((tmp_path / PRIVACY_FILE).read_text())["account"])
    assert set(content["store"]) == {"span_s", "stride_s", "tasks", "without_noise", "ledgers"}


def test_charges_of_a_task_from_before_the_account_of_the_device_count_on(tmp_path):
    """They were among its private tensors."""
    its = toy_task(name="old", method="qqr", config={"dp_noise": 1.0, "upload": "prototypes"})
    older = Account({"acc": Ledger({7: 0.5, 8: 0.25}, 0.1)}).tensors()
    file = PrivacyAccount(tmp_path / PRIVACY_FILE, LearnSettings())
    _, account = file.charge(its, LocalResult({}, private=Account({"acc": Ledger({7: 1.0})}).tensors()))
    with file.saved(account):
        pass
    found = Account.of(file.with_account(its, {"head": np.zeros(1, np.float32), **older}), ("acc",))
    assert found.rho("acc", [7, 8, 9]).tolist() == pytest.approx([1.5, 0.25, 0.0])
    assert found.most == pytest.approx(1.5)
    assert found.epsilon(DELTA) == pytest.approx(epsilon_of(1.5, DELTA))


def test_many_rates_are_counted_as_fewer_that_cost_more(monkeypatch):
    monkeypatch.setattr("models.privacy.device_account.MAX_TRAININGS", 5)
    account = DeviceAccount()
    for number in range(8):
        account = account.after("store", task(), TrainingPlan((number + 10) / 100, 2).charge(), noised=True)
    store = account.stores["store"]
    assert len(store.trainings) == 5
    assert sum(store.trainings.values()) == 16
    exact = sum(sampled_gaussian(NOISE, (number + 10) / 100, 2) for number in range(8))
    assert store.of_windows(1).epsilon(DELTA) >= epsilon_within(exact, DELTA)


def test_training_that_spent_the_limit_leaves_no_room_for_prototypes_of_new_windows(tmp_path):
    qqr = toy_task(name="first", method="qqr", config={"dp_noise": 4.0, "upload": "prototypes"})
    for limit, words in ((epsilon(4, TOGETHER), "leaves no room for prototypes"), (90.0, ""), (None, "")):
        file = PrivacyAccount(tmp_path / f"{limit}.json", LearnSettings(max_epsilon=limit))
        assert file.refusal(qqr, COUNT) == ""
        result = LocalResult({}, private=TrainingPlan(0.25, 16).charge())
        _, account = file.charge(task(), result)
        with file.saved(account):
            pass
        assert words in file.refusal(qqr, COUNT)
        assert bool(words) == bool(file.refusal(qqr, COUNT))
