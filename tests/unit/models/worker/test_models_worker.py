"""Jobs and the worker's protocol, with real child processes where the process is what is tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from models.contract import ClientContext, LocalResult, WindowSet
from models.data import window_set
from models.registry import method, methods
from models.tensors import flatten
from models.worker import __main__, job_folder
from protocol.errors import Misconfigured, Transient
from protocol.frames.tensors import Codec
from protocol.tasks.network import Encoder
from protocol.tasks.task import Window
from tests.support.methods import contract_graphs
from tests.support.python import python
from tests.support.tasks import sensors, small_network, small_task

ROOT = Path(__file__).resolve().parents[4]
TASK = small_task(
    sensors(acc=(2, 16)),
    "ab",
    window=Window(length_s=1),
    network=small_network(4, 4, acc=Encoder(width=4, depth=1)),
)


def windows(count: int = 8) -> WindowSet:
    x = np.random.default_rng(0).normal(size=(count, 2, 16)).astype(np.float32)
    ones = np.ones((count, 1))
    return WindowSet({"acc": x}, ones.astype(bool), ones.astype(np.float32), np.arange(count) % 2)


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "models.worker", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_one_warm_worker_does_all_kinds_of_jobs_and_gives_what_the_method_gives_here(tmp_path):
    folders = {name: tmp_path / name for name in ("init", "train", "evaluate", "bad")}
    for folder in folders.values():
        folder.mkdir()
    client = method("qqr").client()
    state = client.initial(TASK, 7)
    job_folder.write_init(folders["init"], job_folder.InitJob(TASK, 7))
    job_folder.write_train(folders["train"], job_folder.TrainJob(TASK, "d1", 2, 9), windows(), state, {})
    window_set.save(tmp_path / "test.npz", windows())
    job_folder.write_evaluate(folders["evaluate"], job_folder.EvaluateJob(TASK), tmp_path / "test.npz", state)
    (folders["bad"] / "job.json").write_text('{"kind": "train"}')
    lines = "".join(json.dumps({"job": str(folder)}) + "\n" for folder in folders.values()) + "nonsense\n"
    with start("--serve") as process:
        out, err = process.communicate(lines, timeout=120)
    assert process.returncode == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert answers[:3] == [{"ok": True}] * 3
    assert answers[3]["kind"] == "Misconfigured"
    assert "task" in answers[3]["error"]
    assert answers[4] == {"ok": False, "kind": "Fault", "error": "not a job line: 'nonsense\\n'"}

    def raw(tensors):
        return {n: t.tobytes() for n, t in tensors.items()}

    assert raw(flatten(job_folder.read_state(folders["init"]))) == raw(flatten(state))
    there = job_folder.read_result(folders["train"])
    here = client.train(ClientContext(TASK, "d1", 2, 9), windows(), state, {})
    assert raw(there.tensors) == raw(here.tensors)
    assert (there.codecs, there.extra, there.metrics) == (here.codecs, here.extra, here.metrics)
    assert job_folder.read_evaluation(folders["evaluate"]) == client.evaluate(TASK, windows(), state)


def test_a_one_job_run_says_in_its_exit_status_who_must_act(tmp_path):
    with start(str(tmp_path / "nowhere")) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 78
    assert "nowhere/job.json" in json.loads(out)["error"]


def test_usage_without_arguments():
    with start() as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith("usage:")


def test_nothing_to_learn_from_is_transient(tmp_path):
    state = method("qqr").client().initial(TASK, 0)
    job_folder.write_train(tmp_path, job_folder.TrainJob(TASK, "d1", 1, 0), window_set.empty(TASK), state, {})
    said = __main__.answer(tmp_path)
    assert (said["ok"], said["kind"]) == (False, "Transient")
    assert "d1" in said["error"]
    with pytest.raises(Transient, match=r"result\.json"):
        job_folder.read_result(tmp_path)


def test_a_wrong_option_a_foreign_state_and_a_wrong_method_are_named(tmp_path):
    state = method("qqr").client().initial(TASK, 0)
    for change, words in (
        ({"config": {"beta": "much"}}, "config.beta"),
        ({"network": TASK.network.model_copy(update={"hidden_dim": 5})}, "head/fc1"),
    ):
        task = TASK.model_copy(update=change)
        job_folder.write_train(tmp_path, job_folder.TrainJob(task, "d1", 1, 0), windows(), state, {})
        said = __main__.answer(tmp_path)
        assert not said["ok"]
        assert words in said["error"]
        assert said["kind"] in {"Misconfigured", "Refused"}
    unknown = TASK.model_copy(update={"method": "qqrr"})
    with pytest.raises(Misconfigured, match="did you mean 'qqr'"):
        job_folder.write_train(tmp_path, job_folder.TrainJob(unknown, "d1", 1, 0), windows(), state, {})
    job_folder.write_init(tmp_path, job_folder.InitJob(unknown, 0))
    said = __main__.answer(tmp_path)
    assert (said["ok"], said["kind"]) == (False, "Misconfigured")
    assert "did you mean 'qqr'" in said["error"]


def test_a_fault_of_ours_is_told_with_its_trace_on_stderr(tmp_path, monkeypatch, capfd):
    def broken(_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(__main__, "do", broken)
    assert __main__.answer(tmp_path) == {"ok": False, "kind": "Fault", "error": "ZeroDivisionError: oh"}
    assert "Traceback" in capfd.readouterr().err


def test_a_metric_that_overflowed_costs_no_result(tmp_path):
    metrics = {"loss": float("inf"), "align": float("nan"), "lr": 0.1}
    job_folder.save_local_result(tmp_path, LocalResult({}, metrics=metrics))
    assert job_folder.read_result(tmp_path).metrics == {"lr": 0.1}


def test_an_old_result_never_passes_for_a_new_one(tmp_path):
    job_folder.save_local_result(
        tmp_path,
        LocalResult(
            {"head/x": np.ones(2, np.float32)}, {"head/x": Codec.INT4}, private={"p": np.zeros(1, np.float32)}
        ),
    )
    kept = job_folder.read_result(tmp_path)
    assert kept.tensors["head/x"].tolist() == [1, 1]
    assert kept.codecs == {"head/x": Codec.INT4}
    assert kept.private["p"].tolist() == [0]
    job_folder.write_init(tmp_path, job_folder.InitJob(TASK, 1))
    with pytest.raises(Transient):
        job_folder.read_result(tmp_path)


def test_a_job_that_is_no_job_is_named_by_file_and_field(tmp_path):
    with pytest.raises(Misconfigured, match=r"job\.json"):
        job_folder.read_job(tmp_path)
    job_folder.write_init(tmp_path, job_folder.InitJob(TASK, 1))
    assert job_folder.read_job(tmp_path) == job_folder.InitJob(TASK, 1)
    text = (tmp_path / "job.json").read_text().replace('"qqr"', "3")
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(Misconfigured, match=r"job\.json.*method"):
        job_folder.read_job(tmp_path)


def test_without_torch_the_words_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(__main__, "find_spec", lambda _: None)
    job_folder.write_init(tmp_path, job_folder.InitJob(TASK, 1))
    said = __main__.answer(tmp_path)
    assert said["kind"] == "Misconfigured"
    assert "lichen[train]" in said["error"]


@pytest.mark.long
def test_training_loads_none_of_torchs_compiler():
    code = (
        "import sys, tests.unit.models.worker.test_models_worker as t\n"
        "from models.registry import method\n"
        "from models.contract import ClientContext\n"
        "c = method('qqr').client(); s = c.initial(t.TASK, 0)\n"
        "c.train(ClientContext(t.TASK, 'd', 1, 0), t.windows(), s, {}); c.evaluate(t.TASK, t.windows(), s)\n"
        "heavy = {'torch._dynamo', 'torch._inductor', 'sympy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    python("-c", code)


def test_a_job_on_a_graph_gives_what_the_method_gives_here(tmp_path):
    spec = next(spec for spec in methods().values() if spec.material == "graph")
    task = contract_graphs.task_of(spec, {"epochs": 1})
    graph = contract_graphs.graph_of(task, seed=1, missing=0.3)
    state = spec.client().initial(task, 7)
    job_folder.write_train(tmp_path, job_folder.TrainJob(task, "gateway", 1, 9), graph, state, {})
    assert (tmp_path / "graph.npz").is_file()
    assert not (tmp_path / job_folder.WINDOWS).exists()
    assert __main__.answer(tmp_path) == {"ok": True}
    made, expected = (
        job_folder.read_result(tmp_path),
        spec.client().train(ClientContext(task, "gateway", 1, 9), graph, state, {}),
    )
    for one, other in ((made.tensors, expected.tensors), (made.private, expected.private)):
        assert {n: t.tobytes() for n, t in one.items()} == {n: t.tobytes() for n, t in other.items()}
    assert (made.codecs, made.weight, made.extra) == (expected.codecs, expected.weight, expected.extra)
    assert set(made.codecs.values()) == {Codec.UINT8, Codec.INT8}


def test_a_job_whose_graph_is_of_another_task_is_named_by_file_and_key(tmp_path):
    spec = next(spec for spec in methods().values() if spec.material == "graph")
    task = contract_graphs.task_of(spec, {})
    graph = contract_graphs.graph_of(task, seed=1)
    narrow = task.graph.model_copy(update={"features": task.graph.features[:1]})
    other = task.model_copy(update={"graph": narrow})
    job_folder.write_train(tmp_path, job_folder.TrainJob(other, "gateway", 1, 9), graph, {}, {})
    said = __main__.answer(tmp_path)
    assert (said["ok"], said["kind"]) == (False, "Misconfigured")
    assert (
        "graph.npz: no knowledge graph for task 'contract': keys ['x/picture'] are missing or foreign"
        in said["error"]
    )
