"""Files of a graph that break, vanish or are not there yet, while rounds go on."""

from models import registry
from models.knowledge_graph.data.files import write_features
from protocol.messages import Offer
from tests.support.agent.graph import graph_task, lines
from tests.support.methods.graph_cases import HOUSE, named
from tests.support.services import until
from tests.unit.edge_agent.knowledge_graph.test_agent_graph import announce, living, offer

TASK = graph_task()


def next_offer(agent, round_: int) -> Offer:
    return offer(agent, round_, registry.method(TASK.method).client().initial(TASK, 0))[0]


def sizes(agent) -> list[int]:
    return [len(seen) for seen in agent.learner._worker.seen]


def append(folder, *triples):
    with (folder / "facts.tsv").open("a") as file:
        file.write(lines(triples))


async def test_rounds_go_on_with_the_last_good_graph_and_take_what_came_when_it_is_mended(tmp_path):
    async with living(tmp_path) as agent:
        await announce(agent)
        await until(lambda: agent.reporter.state().windows == 6)
        append(tmp_path, ("well", "feeds", "pump"))
        (tmp_path / "text.npz").write_bytes(b"PK half")
        agent.learner.offer(next_offer(agent, 1))
        await until(lambda: agent.learner.trained == 1)
        await until(lambda: "text.npz" in agent.status()["graph"])
        (tmp_path / "facts.tsv").unlink()
        agent.learner.offer(next_offer(agent, 2))
        await until(lambda: agent.learner.trained == 2)
        (tmp_path / "facts.tsv").write_text(lines([*HOUSE, ("well", "feeds", "pump")]))
        write_features(tmp_path / "text.npz", named({"well": [1.0, 1.0]}))
        agent.learner.offer(next_offer(agent, 3))
        await until(lambda: agent.learner.trained == 3)
        assert sizes(agent) == [6, 6, 7]
        await until(lambda: agent.status()["graph"] == "ok")
        assert agent.learner.failures == 0


async def test_an_agent_starts_without_its_files_says_what_it_lacks_and_learns_when_they_come(tmp_path):
    async with living(tmp_path) as agent:
        secret = (tmp_path / "fleet.secret").read_bytes()
        (tmp_path / "fleet.secret").unlink()
        await announce(agent)
        await until(lambda: agent.tasks.workspace.problem() is not None)
        assert "the fleet's secret is missing" in agent.tasks.workspace.problem().words
        assert "there is no knowledge graph to learn from" in agent.tasks.workspace.problem().words
        agent.learner.offer(next_offer(agent, 1))
        await until(lambda: agent.learner.why == "0 triples to learn from, the task wants 4")
        (tmp_path / "fleet.secret").write_bytes(secret)
        await until(lambda: agent.reporter.state().windows == 6)
        agent.learner.offer(next_offer(agent, 1))
        await until(lambda: agent.learner.trained == 1)
        assert sizes(agent) == [6]
