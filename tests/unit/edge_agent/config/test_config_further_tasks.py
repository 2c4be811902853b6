"""``[[tasks]]``: what a further task has for itself, what it shares, and what is refused."""

import json
from pathlib import Path

import pytest

from edge_agent.config.agent import AgentSettings, read
from edge_agent.identity.fleet_secret import secret_path
from edge_agent.opening import filters_of
from edge_agent.publish.home_assistant import label_entities, node_of
from edge_agent.trust.updater import root_file
from protocol.errors import Misconfigured

HEAD = 'fleet = "f"\ndevice = "d"\nstate_dir = "state"\ncache_dir = "cache"\n'
SOURCE = '[[source]]\nkind = "replay"\nfile = "a.npz"\n'


def settings(folder: Path, text: str, head: str = "") -> AgentSettings:
    file = folder / "agent.toml"
    file.write_text(f"{HEAD}{head}{SOURCE}{text}")
    return read(file)


def test_a_device_with_one_task_is_as_it_was(tmp_path) -> None:
    one = settings(tmp_path, "")
    assert one.for_task(None) is one
    assert (one.task_name, one.device_dir) == (None, tmp_path / "state")


def test_a_further_task_has_its_namespace_folders_roles_and_keys(tmp_path) -> None:
    whole = settings(
        tmp_path,
        '[learn]\nthreads = 4\ninputs = ["acc"]\nmax_epsilon = 8.0\n[infer]\noutput = "main.jsonl"\n'
        '[[tasks]]\nname = "sound"\nroles = ["observe"]\ntask_file = "sound.toml"\n'
        '[tasks.learn]\nmax_windows = 100\n[tasks.infer]\noutput = "sound.jsonl"\n'
        '[[tasks]]\nname = "steps"\n',
    )
    sound, steps = whole.for_task("sound"), whole.for_task("steps")
    assert (sound.fleet, sound.task_name) == ("f~sound", "sound")
    assert sound.state_dir == tmp_path / "state" / "tasks" / "sound"
    assert sound.cache_dir == tmp_path / "cache" / "tasks" / "sound"
    assert sound.device_dir == whole.device_dir == tmp_path / "state"
    assert (sound.roles, sound.task_file) == (("observe",), tmp_path / "sound.toml")
    assert (sound.learn.max_windows, sound.learn.threads, sound.learn.max_epsilon) == (100, 4, 8.0)
    assert sound.learn.inputs is None, "the main task's modalities are none of this one's"
    assert (sound.infer.output, steps.infer.output) == (tmp_path / "sound.jsonl", None)
    assert (steps.roles, steps.task_file, steps.learn.max_windows) == (whole.roles, None, 4096)
    assert whole.for_task(None).fleet == "f"
    assert [topic for topic, _ in filters_of(steps)] == [
        *("lichen/v1/f~steps/d/d/down/#", "lichen/v1/f~steps/b/task", "lichen/v1/f~steps/b/model"),
        "lichen/v1/f~steps/b/offer",
    ]


def test_all_tasks_together_have_the_budgets_of_the_device(tmp_path) -> None:
    head = "blob_budget_bytes = 1000000\n"
    budgets = "[store]\nbudget_bytes = 5000000\n[outbox]\nbudget_bytes = 400000\n"
    whole = settings(tmp_path, f'{budgets}[[tasks]]\nname = "a"\n[[tasks]]\nname = "b"\n', head)
    each = [whole.for_task(name) for name in (None, "a", "b")]
    assert sum(one.store.budget_bytes for one in each) <= 5_000_000
    assert sum(one.outbox.budget_bytes for one in each) <= 400_000
    assert sum(one.blob_budget_bytes for one in each) <= 1_000_000
    assert {one.store.budget_bytes for one in each} == {1_666_666}


def test_a_further_task_has_the_identity_of_the_device(tmp_path) -> None:
    whole = settings(tmp_path, '[[tasks]]\nname = "a"\n[[tasks]]\nname = "b"\ntrust_file = "b.json"\n')
    folder = tmp_path / "state" / "identity"
    folder.mkdir(parents=True)
    (folder / "root.json").write_text("{}")
    task, other = whole.for_task("a"), whole.for_task("b")
    assert root_file(task.device_dir, task.trust_file) == folder / "root.json", "nothing unsigned"
    assert root_file(other.device_dir, other.trust_file) == tmp_path / "b.json"
    assert secret_path(task) == secret_path(whole)


def test_predictions_of_two_tasks_are_published_apart(tmp_path) -> None:
    whole = settings(tmp_path, '[infer.mqtt]\nhost = "ha"\n[[tasks]]\nname = "sound"\n')
    task = whole.for_task("sound")
    assert whole.infer.mqtt is not None
    assert task.infer.mqtt is not None
    assert whole.infer.mqtt.base("d") == "lichen/d"
    assert task.infer.mqtt.base("d") == "lichen/d/sound"
    both = [(one.fleet, label_entities(one.infer.mqtt, one.fleet, "d", "t", ["a"])) for one in (whole, task)]
    assert not both[0][1].keys() & both[1][1].keys()
    named = [json.loads(next(iter(found.values())))["device"] for _, found in both]
    assert [one["name"] for one in named] == ["d", "d sound"]
    assert [one["identifiers"] for one in named] == [[node_of(fleet, "d")] for fleet, _ in both]


def test_no_two_tasks_connect_to_a_sensors_broker_with_one_client_id(tmp_path) -> None:
    source = '[[source]]\nkind = "mqtt"\nclient_id = "me"\n[[tasks]]\nname = "sound"\n'
    task = settings(tmp_path, source).for_task("sound")
    assert [table.get("client_id") for table in task.source] == [None, "me-sound"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[tasks]]\nname = "a.b"\n', "write 'a-b'"),
        (f'[[tasks]]\nname = "{"x" * 41}"\n', "has at most 40"),
        ('[[tasks]]\nname = "a"\n[[tasks]]\nname = "a"\n', "'a' is there twice"),
        ("".join(f'[[tasks]]\nname = "t{i}"\n' for i in range(9)), "at most 8 wanted"),
        ('[[tasks]]\nname = "a"\n[tasks.learn]\nmax_epsilon = 1.0\n', "max_epsilon"),
        ('[store]\nbudget_bytes = 1500000\n[[tasks]]\nname = "a"\n', "set at least 2000000"),
        ('[outbox]\nbudget_bytes = 70000\n[[tasks]]\nname = "a"\n', "outbox.budget_bytes"),
        ('[store]\nenabled = false\n[[tasks]]\nname = "a"\nroles = ["train"]\n', "store.enabled is false"),
    ],
)
def test_what_cannot_be_is_refused_with_the_key(tmp_path, text: str, words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        settings(tmp_path, text, 'roles = ["observe"]\n')


def test_an_unknown_task_is_refused_with_those_that_there_are(tmp_path) -> None:
    whole = settings(tmp_path, '[[tasks]]\nname = "sound"\n')
    with pytest.raises(Misconfigured, match="named 'sond'; there is sound"):
        whole.for_task("sond")


def test_a_namespace_is_no_name_of_a_fleet_in_the_file(tmp_path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(HEAD.replace('"f"', '"f~x"') + SOURCE)
    with pytest.raises(Misconfigured, match="is no name"):
        read(file)
