"""An agent with a graph: what it says of itself, what it fetches, what it learns from, and what goes up."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_agent.cli.main import app
from edge_agent.knowledge_graph.workspace import BROKEN
from edge_agent.opening import open_agent
from models import registry
from models.contract import Blobs
from models.knowledge_graph.data import embedding_tables, keyed
from models.knowledge_graph.data.files import write_features
from models.knowledge_graph.data.keys import RELATIONS, key
from models.worker import __main__ as worker
from protocol.errors import Refused
from protocol.frames.frame import decode_frame, encode_frame
from protocol.frames.headers import BlobHeader, Manifest, UpdateHeader
from protocol.frames.tensors import Codec
from protocol.frames.tensors import encode as encode_tensor
from protocol.messages import Offer, State, decode, encode
from protocol.tasks.announcement import TaskAnnouncement
from runtime.clock import SystemClock
from tests.support.agent.data import toy_task
from tests.support.agent.graph import graph_config, graph_task, lines, settings_of, write_house
from tests.support.agent.parts import alive
from tests.support.methods.graph_cases import HOUSE, named
from tests.support.services import until

TASK = graph_task()


class Teacher:
    """The worker in this process, which keeps what it was given."""

    def __init__(self):
        self.seen: list[keyed.KeyedGraph] = []

    async def run(self, folder, _timeout_s):
        self.seen.append(keyed.load(folder / "graph.npz", TASK))
        await asyncio.to_thread(worker.do, folder)

    async def close(self):
        pass


@asynccontextmanager
async def living(folder, **keys):
    """An agent whose services run, but for its link: blobs are there, or are asked for in vain."""
    write_house(folder)
    agent = open_agent(settings_of(folder, **keys), [], SystemClock(), worker=Teacher())
    agent.fetcher.fetched = []

    async def fetch(ref, _timeout_s):
        agent.fetcher.fetched.append(ref.digest)
        return agent.storage.blobs.path(ref.digest)

    agent.fetcher.fetch = fetch
    async with alive(agent, "graph", "learner"):
        yield agent


async def announce(agent, task=TASK):
    await agent.work.act_on(TaskAnnouncement.of(task))


def offer(agent, round_: int, blobs: Blobs) -> tuple[Offer, dict[str, str]]:
    """Make a version fetchable; the offer of it, and the digest of each blob."""
    codecs, refs = registry.method(TASK.method).codecs, {}
    for name, tensors in blobs.items():
        encoded = {
            n: encode_tensor(x, codecs.get(n.rsplit("/")[-1], Codec.FLOAT32)) for n, x in tensors.items()
        }
        refs[name] = agent.storage.blobs.put(encode_frame(BlobHeader(name=name), encoded))
    base = agent.storage.blobs.put(
        encode(Manifest(task=TASK.name, method=TASK.method, version=0, blobs=refs))
    )
    made = Offer(task=TASK.name, round=round_, base=base.digest, base_size=base.size, closes_in_s=60)
    return made, {name: ref.digest for name, ref in refs.items()}


async def test_its_state_counts_triples_and_tells_who_has_features(tmp_path):
    async with living(tmp_path) as agent:
        before = agent.reporter.state()
        assert (before.windows, before.modalities) == (0, {})
        await announce(agent)
        assert agent.reporter.state().windows == 0, "not read yet"
        await until(lambda: agent.reporter.state().windows == 6)
        state = agent.reporter.state()
        assert state.targets == ()
        assert (state.modalities["text"].windows, state.modalities["text"].missing) == ((5,), 0.167)
        agent.reporter._sent, agent.reporter._sent_at = before, SystemClock().now()
        assert agent.reporter.is_due(state), "min_windows is reached"
        status = json.loads(json.dumps(agent.status()))
        assert (status["triples"], status["entities"], status["relations"]) == (6, 5, 4)
        assert (status["graph"], status["triples_with"]) == ("ok", {"text": 5})
        words = (tmp_path / "fleet.secret").read_text().strip()
        assert words not in json.dumps(status)
        assert (before.fleet_secret, state.fleet_secret) == (None, status["fleet_secret"])
        assert words not in encode(state).decode()
        other = state.model_copy(update={"fleet_secret": "0" * 16})
        agent.reporter._sent, agent.reporter._sent_at = other, SystemClock().now() - 60
        assert agent.reporter.is_due(state), "another secret is said soon"


async def test_a_new_triple_is_in_the_next_round_and_no_name_goes_up(tmp_path):
    names = {name for fact in HOUSE for name in fact} | {"well"}
    async with living(tmp_path) as agent:
        await announce(agent)
        await until(lambda: agent.reporter.state().windows == 6)
        spec = registry.method(TASK.method)
        state = spec.client().initial(TASK, 0)
        agent.learner.offer(offer(agent, 1, state)[0])
        await until(lambda: agent.learner.trained == 1)
        (entry,) = agent.storage.spool.pending()
        frame = agent.storage.spool.payload(entry.digest)
        header, tensors = decode_frame(frame, UpdateHeader)
        assert (header.samples, header.weight, header.counts) == (6, 6, {"text": (5,)})
        assert len(tensors["keys/new"]) == 5
        secret = agent.tasks.workspace.snapshot.secret
        for name in names:
            assert name.encode() not in frame
            assert key(secret, name, RELATIONS) not in frame
        kept = agent.storage.private.read(TASK.name)
        assert embedding_tables.tables(kept).entities_EVD.shape[0] == 5
        with (tmp_path / "facts.tsv").open("a") as file:
            file.write(lines([("well", "feeds", "pump")]))
        agent.learner.offer(offer(agent, 2, state)[0])
        await until(lambda: agent.learner.trained == 2)
        first, second = agent.learner._worker.seen
        assert (len(first), len(second)) == (6, 7)
        assert np.array_equal(second.entity_keys_E16[:5], first.entity_keys_E16)
        assert second.features["text"][5].tolist() == [1, 1]
        assert len(embedding_tables.tables(agent.storage.private.read(TASK.name)).entities_EVD) == 6


async def test_its_own_rows_are_on_its_route_and_no_other_devices(tmp_path):
    async with living(tmp_path) as agent:
        await announce(agent)
        await until(lambda: agent.reporter.state().windows == 6)
        state = registry.method(TASK.method).client().initial(TASK, 0)
        keys = np.full((1, 16), 7, np.float32)
        for device in ("d", "other"):
            state[f"rows/{device}"] = {
                f"rows/{device}/keys": keys,
                f"rows/{device}/value": np.zeros((1, 8), np.float32),
            }
        made, digests = offer(agent, 1, state)
        agent.learner.offer(made)
        await until(lambda: agent.learner.trained == 1)
        assert agent.learner.blobs.last_route == ("projection/text", "rows/d")
        assert digests["rows/d"] in agent.fetcher.fetched
        assert digests["rows/other"] not in agent.fetcher.fetched


async def test_a_file_that_breaks_is_said_everywhere_and_the_last_good_graph_stays(tmp_path):
    async with living(tmp_path) as agent:
        await announce(agent)
        await until(lambda: agent.reporter.state().windows == 6)
        good = agent.reporter.state()
        (tmp_path / "text.npz").write_bytes(b"half a file")
        await until(lambda: agent.reporter.state().modalities["text"].reasons == (BROKEN,))
        assert agent.reporter.state().windows == 6
        agent.reporter._sent, agent.reporter._sent_at = good, SystemClock().now() - 60
        assert agent.reporter.is_due(agent.reporter.state())
        assert "boiler" not in agent.reporter.state().model_dump_json()
        (wait,) = [one for one in agent.status()["waits"] if one["what"] == "graph"]
        assert "text.npz: cannot be read as features" in wait["why"]
        assert "the earlier knowledge graph is used" in wait["why"]
        assert agent.status()["graph"].startswith("cannot be used since")
        assert len(agent.tasks.workspace.load(0)[1]) == 6
        write_features(tmp_path / "text.npz", named({"pump": [1.0, 1.0]}))
        await until(lambda: not agent.reporter.state().modalities["text"].reasons)
        assert agent.status()["graph"] == "ok"


async def test_a_task_on_windows_and_one_on_graphs_follow_each_other(tmp_path):
    async with living(tmp_path) as agent:
        await announce(agent)
        await until(lambda: agent.reporter.state().windows == 6)
        with pytest.raises(Refused, match="delivers none of its modalities"):
            await announce(agent, toy_task())
        agent.sources.append(type("Toy", (), {"name": "toy", "channels": {"acc": 3}})())
        await announce(agent, toy_task())
        assert set(agent.reporter.state().modalities) == {"acc"}
        await announce(agent)
        await until(lambda: agent.reporter.state().windows == 6)
        assert agent.collector.workspace is None


async def test_windows_that_a_task_on_graphs_left_behind_go_when_another_grid_comes(tmp_path):
    def kept() -> list[str]:
        return sorted(path.name for path in (tmp_path / "state" / "store").glob("*.sqlite3"))

    async with living(tmp_path) as agent:
        agent.sources.append(type("Toy", (), {"name": "toy", "channels": {"acc": 3}})())
        for task in (toy_task(), TASK):
            await announce(agent, task)
        first = kept()
        await announce(agent, toy_task())
        assert kept() == first, "the same grid finds its windows again"
        for task in (TASK, toy_task(labels=("a", "b", "c", "d"))):
            await announce(agent, task)
        assert len(kept()) == 1
        assert kept() != first


async def test_a_device_without_a_graph_refuses_a_task_on_graphs(tmp_path):
    (tmp_path / "agent.toml").write_text("")
    from tests.unit.edge_agent.messaging.test_agent_session import make  # noqa: PLC0415 - one test alone has sensors

    agent = make(tmp_path)
    with pytest.raises(Refused, match=r"write a table \[graph\] with triples"):
        await announce(agent)
    assert "write a table [graph]" in agent.tasks.task_mismatch
    state = agent.reporter.state()
    assert decode(encode(state), State).refuses == agent.tasks.task_mismatch
    agent.reporter._sent = state.model_copy(update={"refuses": None})
    agent.reporter._sent_at = SystemClock().now() - 60
    assert agent.reporter.changed.is_set()
    assert agent.reporter.is_due(state), "the coordinator hears of it soon"
    agent.tasks.task_mismatch = f"a\x1b[2J \udcff\n{'b' * 500}"
    (words,) = [decode(encode(agent.reporter.state()), State).refuses]
    assert words.startswith("a [2J bbb")
    assert words.endswith("b...")
    await announce(agent, toy_task())
    assert agent.reporter.state().refuses is None
    assert not [wait for wait in agent.report.waits() if wait.what == "task"]
    with pytest.raises(Refused):
        await announce(agent)
    (wait,) = [wait for wait in agent.report.waits() if wait.what == "task"]
    assert "table [graph] with triples (the device stays with task 'toy')" in wait.why
    await announce(agent, toy_task())
    assert not [wait for wait in agent.report.waits() if wait.what == "task"], (
        "what can be done was announced again"
    )
    agent.close()


def check(folder, *options, **keys):
    path = graph_config(folder, **keys)
    return CliRunner().invoke(app, ["check", "--config", str(path), *options])


def write_task(folder, dim=2):
    (folder / "task.toml").write_text(
        f'name = "house"\nmethod = "mmfed3_hide"\n[graph]\nmax_entities = 10\n'
        f'[[graph.features]]\nname = "text"\ndim = {dim}\n'
    )


def test_check_counts_the_graph_and_says_which_secret_it_has(tmp_path):
    write_house(tmp_path)
    found = json.loads(check(tmp_path, "--format", "json").stdout)
    assert found["graph"] == {"triples": 6, "entities": 5, "relations": 4}
    write_task(tmp_path)
    again = json.loads(check(tmp_path, "--format", "json", more='task_file = "task.toml"').stdout)
    assert (again["graph"], again["fleet_secret"]) == (found["graph"], found["fleet_secret"])
    few, lone = "6 facts are too few for a round: rounds.min_windows is 32", "1 rows of features or masks are"
    assert again["graph_notes"] == [f"{lone} of entities without a fact", few]
    assert again["triples_with"]["text"] > 0
    (tmp_path / "fleet.secret").chmod(0o644)
    assert "others may read it (mode 0644)" in check(tmp_path).output


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "facts.tsv").write_text("a\tb\n"), "facts.tsv: line 1 has 2 columns"),
        (lambda f: (f / "facts.tsv").unlink(), "no such file"),
        (lambda f: (f / "fleet.secret").unlink(), "lichen agent secret FILE makes one"),
        (lambda f: write_task(f, dim=5), "text, dim = 5"),
        (lambda f: write_features(f / "text.npz", named({"a": [1.0]})), "text, dim = 2"),
        (
            lambda f: write_features(f / "text.npz", named({f"v{n}": [1.0, 2.0] for n in range(41)})),
            "has 41 names, at most 40 are read, 4 times the task's graph.max_entities",
        ),
        (lambda f: (f / "text.npz").unlink(), "text.npz: cannot be read as features (npz): No such file or"),
    ],
)
def test_check_names_what_is_wrong(tmp_path, spoil, words):
    write_house(tmp_path)
    write_task(tmp_path)
    spoil(tmp_path)
    done = check(tmp_path, more='task_file = "task.toml"')
    assert done.exit_code == 78
    assert words in " ".join(done.output.split())


def test_features_of_no_modality_of_the_task_are_an_error_of_the_configuration(tmp_path):
    write_house(tmp_path)
    write_task(tmp_path)
    text = (tmp_path / "task.toml").read_text().replace("text", "picture")
    (tmp_path / "task.toml").write_text(text)
    done = check(tmp_path, more='task_file = "task.toml"')
    assert done.exit_code == 78
    assert "agent.toml: graph.features.text: task 'house' has no such modality (it has pic" in done.output


def test_features_of_none_of_its_entities_are_told_and_no_error(tmp_path):
    write_house(tmp_path)
    write_task(tmp_path)
    write_features(tmp_path / "text.npz", named({"BOILER": [1.0, 2.0]}))
    found = json.loads(check(tmp_path, "--format", "json", more='task_file = "task.toml"').stdout)
    assert found["triples_with"] == {"text": 0}
    assert found["graph_notes"][0].startswith("no entity of a fact has features of text: ")
