"""Files of the demo on knowledge graphs: each site's facts, texts and questions, and all configurations."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_agent.identity import fleet_secret
from lichen_lab.demo.core import scenario
from lichen_lab.demo.core.prepare import begin, write_configurations
from lichen_lab.demo.core.scenario import Layout, Options
from lichen_lab.demo.plans.mmfed3_hide import devices as cast
from lichen_lab.demo.plans.mmfed3_hide import parts
from lichen_lab.demo.plans.mmfed3_hide.devices import DemoSite
from lichen_lab.demo.plans.mmfed3_hide.parts import GraphPart
from lichen_lab.demo.plans.mmfed3_hide.results import Gateway, GatewayAnswer, GraphResults
from models.knowledge_graph.data.graph import KnowledgeGraph


@dataclass(frozen=True)
class GraphStage(scenario.PreparedDemo[GraphResults]):
    """A knowledge-graph demo that is ready to start."""

    graph: KnowledgeGraph = field(kw_only=True)
    parts: dict[str, GraphPart] = field(kw_only=True)
    waiting: dict[str, str] = field(default_factory=dict)
    """As ``people``, for sites that join later."""


def prepare(options: Options) -> GraphStage:
    """Write all files that the processes read.

    Raises:
        Misconfigured: UMLS is not here and does not come, or the output folder is somebody else's.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    layout, graph = begin(options, parts.umls)
    task = cast.task(options.rounds, seed=options.seed)
    fleet_secret.make(secret_file(layout))
    dealt = {site.name: parts.site_part(graph, site, options.seed) for site in cast.SITES}
    for site in cast.SITES:
        parts.write(cast.folder(layout, site.name), dealt[site.name])
        asked = parts.questions(dealt[site.name], cast.QUESTIONS, site.first)
        parts.write_questions(questions_file(layout, site.name), asked)
    stage = GraphStage(
        layout=layout,
        task=task,
        results=initial_results(graph, dealt),
        people={site.name: site.about for site in cast.SITES if not site.late},
        waiting={site.name: site.about for site in cast.SITES if site.late},
        agent=lambda name: gateway_config(layout, name),
        lengths_s=dict.fromkeys((site.name for site in cast.SITES), 0.0),
        graph=graph,
        parts=dealt,
    )
    late = {name: gateway_config(layout, name) for name in stage.waiting}
    return write_configurations(stage, {**late, "coordinator": coordinator_config(layout, options.rounds)})


def secret_file(layout: Layout) -> Path:
    """The fleet's secret. Only the gateways' configurations name it."""
    return layout.root / "sites" / fleet_secret.FILE


def questions_file(layout: Layout, name: str) -> Path:
    """A gateway's questions."""
    return cast.folder(layout, name) / "questions.tsv"


def private_file(layout: Layout, name: str) -> Path:
    """A gateway's private embeddings."""
    return layout.state(name) / "private" / f"{cast.TASK_NAME}.npz"


def answers_file(layout: Layout, name: str) -> Path:
    """A gateway's answers."""
    return layout.root / f"answers-{name}.jsonl"


def gateway_config(layout: Layout, name: str) -> dict[str, Any]:
    """Configuration of an agent that reads its site's files."""
    folder = cast.folder(layout, name)
    return layout.agent(
        name,
        roles=["observe", "train"],
        state_every_s=1.0,
        infer={"enabled": True, "output": str(answers_file(layout, name))},
        graph={
            "triples": [str(folder / cast.TRIPLES)],
            "features": {cast.TEXT: str(folder / cast.TEXT_FILE)},
            "secret_file": str(secret_file(layout)),
            "queries": str(questions_file(layout, name)),
            "poll_s": cast.POLL_S,
        },
    )


def coordinator_config(layout: Layout, rounds: int) -> dict[str, Any]:
    """Configuration of the coordinator, which has no graph to evaluate versions on."""
    # A version before the site gets more facts, so that it answers before and after.
    table = scenario.coordinator_config(layout, export={"every_rounds": cast.grow_round(rounds)})
    del table["evaluation"]
    return table


def initial_results(graph: KnowledgeGraph, dealt: dict[str, GraphPart]) -> GraphResults:
    """The results before the start."""
    gateways = [_gateway(site, dealt[site.name]) for site in cast.SITES]
    return GraphResults(entities=len(graph.entities), gateways=gateways)


def _gateway(site: DemoSite, own: GraphPart) -> Gateway:
    tails: dict[tuple[str, str], list[str]] = {}
    for head, relation, tail in own.held_out:
        tails.setdefault((head, relation), []).append(tail)
    return Gateway(
        name=site.name,
        about=site.about,
        relations=site.relations,
        entities=own.entities[1],
        entities_first=own.entities[0],
        texts=len(own.text.entities),
        triples=len(own.now),
        later=len(own.later),
        late=site.late,
        answers=[
            GatewayAnswer(head, relation, tuple(tails[head, relation]))
            for head, relation in parts.questions(own, cast.QUESTIONS, site.first)
        ],
    )
