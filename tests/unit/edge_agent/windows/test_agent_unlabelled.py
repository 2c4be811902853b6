"""A device without a single label, in a task whose method needs none there."""

from dataclasses import replace

import numpy as np
import pytest

from edge_agent.storage.agent_storage import open_storage
from edge_agent.windows.store import WindowStore
from edge_agent.windows.window_sets import scored_windows, to_window_set
from edge_agent.windows.workspace import WindowWorkspace, material
from models import registry
from models.contract import ClientContext, LocalResult, Profile, WindowSet, blob_of
from models.data import window_set
from models.data.streams.recording import Recording
from models.worker import job_folder
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.messages import Offer
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task, Window
from runtime.clock import SystemClock
from tests.support.agent.data import toy_recording, toy_task
from tests.support.agent.parts import learner_of
from tests.support.services import beside, until
from tests.unit.edge_agent.messaging.test_agent_session import config, make, read
from tests.unit.edge_agent.windows.test_agent_store import same

TASK = toy_task(
    method="tactfl",
    window=Window(length_s=2.56, stride_s=1.28, context_s=5.12),
    rounds=Rounds(min_windows=40),
)
LABELLED = TASK.model_copy(update={"method": "qqr"})


def unlabelled(seconds: float = 60.0, task: Task = TASK) -> WindowSet:
    recording = Recording(toy_recording(seconds).streams)
    return window_set.concat([to_window_set(*judged) for judged in scored_windows(task, recording)])


def work_of(folder, task: Task = TASK, **changes: object) -> WindowWorkspace:
    store = WindowStore(folder, task, 10_000_000)
    store.add(unlabelled())
    return replace(WindowWorkspace(task, task.modality_names, None, None, store), **changes)


async def test_its_state_counts_every_window_and_tells_the_sensors_quality(tmp_path):
    agent = make(tmp_path)
    await agent.work.act_on(TaskAnnouncement.of(TASK))
    before = agent.reporter.state()
    assert before.windows == 0
    agent.tasks.workspace.store.add(unlabelled())
    state = agent.reporter.state()
    assert state.windows == 46
    assert {*state.modalities} == {"acc", "gyr"}
    assert all(0.5 < one.quality <= 1 and one.missing < 0.1 for one in state.modalities.values())
    assert not any(sum(one.windows) for one in state.modalities.values()), "of no class"
    agent.reporter._sent, agent.reporter._sent_at = before, SystemClock().now()
    assert agent.reporter.is_due(state), "min_windows is reached"
    assert agent.status()["windows_to_learn_from"] == 46
    await agent.work.act_on(TaskAnnouncement.of(LABELLED))
    assert agent.reporter.state().windows == 0, "another method, the same store"
    agent.close()


def test_all_its_windows_teach_and_those_it_may_not_read_do_not(tmp_path):
    work = work_of(tmp_path)
    profile, found = material(work, 100, labelled=work.needs_labels)
    assert profile == Profile(("acc", "gyr"))
    same(found, unlabelled())
    deaf = unlabelled(10)
    deaf = replace(deaf, present_BM=deaf.present_BM & [False, True], x=deaf.x | {"acc": deaf.x["acc"] * 0})
    work.store.add(replace(deaf, context=None))
    seeing = replace(work, modalities=("acc",))
    assert seeing.current_profile(work.store.snapshot()) == (Profile(("acc",)), 46)
    profile, found = material(seeing, 100, labelled=False)
    assert profile == Profile(("acc",))
    assert found.present_BM.tolist() == [[True, False]] * 46
    window_set.check(found, TASK)
    work.store.close()


@pytest.mark.parametrize(
    ("task", "by", "needs", "windows"),
    [
        (TASK, "train", False, 46),
        (TASK, None, False, 46),
        (TASK, "prototype", True, 0),
        (LABELLED, "train", True, 0),
        (LABELLED, "prototype", True, 0),
    ],
)
def test_labels_are_asked_for_by_method_and_role(tmp_path, task, by, needs, windows):
    work = work_of(tmp_path, task, by=by)
    assert work.needs_labels == needs
    assert work.current_profile(work.store.snapshot())[1] == windows
    work.store.close()


class Teacher:
    """Stands in for the worker: looks at what it is given."""

    def __init__(self) -> None:
        self.seen: list[WindowSet] = []

    async def run(self, folder, _timeout_s: float) -> None:
        self.seen.append(window_set.load(folder / job_folder.WINDOWS, TASK))
        delta = np.full(3, 0.5, np.float32)
        job_folder.save_local_result(folder, LocalResult({"encoder/acc/w": delta}, metrics={"loss": 1.0}))

    async def close(self) -> None:
        pass


async def test_an_offer_is_learnt_from_with_contexts_and_no_label_goes_up(tmp_path):
    settings, clock, teacher = read(config(tmp_path)), SystemClock(), Teacher()
    work = work_of(settings.state_dir / "store")
    storage = open_storage(settings, clock)
    learner = learner_of(settings, work, storage, None, clock, worker=teacher)

    async def state(*_args):
        return {"encoder/acc": {"encoder/acc/w": np.zeros(3, np.float32)}}

    learner.blobs.fetch_for_training = state
    async with beside(learner.run()):
        wanting = work.task.model_copy(update={"rounds": Rounds(min_windows=47)})
        work.task, plenty = wanting, work.task
        offer = Offer(task="toy", round=1, base="a" * 64, base_size=10, closes_in_s=60)
        learner.offer(offer)
        await until(lambda: learner.why == "46 windows to learn from, the task wants 47")
        work.task = plenty
        learner.offer(offer)
        await until(lambda: learner.trained == 1)
        (seen,) = teacher.seen
        same(seen, unlabelled())
        assert seen.context is not None
        assert (seen.context.points_BM[2:] == [256, 128]).all()
        (entry,) = storage.spool.pending()
        header, tensors = decode_frame(storage.spool.payload(entry.digest), UpdateHeader)
        assert (header.samples, header.counts) == (46, {"acc": (0, 0, 0), "gyr": (0, 0, 0)})
        assert header.quality["acc"] == pytest.approx(seen.quality_BM[:, 0].mean())
        np.testing.assert_allclose(tensors["encoder/acc/w"], 0.5, atol=0.01)
    storage.close()
    work.store.close()


def test_the_methods_client_cuts_segments_from_what_the_store_kept(tmp_path):
    small = Encoder(width=4, depth=2)
    network = Network(encoders={"acc": small, "gyr": small}, feature_dim=8, hidden_dim=8)
    task = TASK.model_copy(update={"network": network, "config": {"batch": 16}})
    work = work_of(tmp_path, task)
    profile, found = material(work, 100, labelled=work.needs_labels)
    client = registry.method("tactfl").client()
    context = ClientContext(task, "d", 1, 0, profile)
    result = client.train(context, found, client.initial(task, 0), {})
    assert result.metrics["context"] == 45, "all windows but the first had a past"
    assert {blob_of(name) for name in result.tensors} == {"encoder/acc", "encoder/gyr"}
    work.store.close()
