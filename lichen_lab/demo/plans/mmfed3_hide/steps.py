"""The steps of the knowledge-graph demo: learn, tell a site more, let another join, ask, compare, search."""

import asyncio
from pathlib import Path
from typing import Any, Final

from lichen_lab.demo.core import lichen_commands, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.scenario import FLEET
from lichen_lab.demo.plans.mmfed3_hide import collect_results, devices, leak_search, parts, prepare
from lichen_lab.demo.plans.mmfed3_hide.leak_search import Searcher
from lichen_lab.demo.plans.mmfed3_hide.prepare import GraphStage
from protocol.errors import Transient

_DEPLOY_S: Final = 60.0
_ASK_S: Final = 60.0
_SAID: Final = 3


async def live(fleet: DemoFleet[GraphStage]) -> None:
    """From the first process to the last."""
    story, seen = fleet.stage.story, Searcher(FLEET)
    async with fleet.running(), fleet.onlooking(seen):
        async with asyncio.TaskGroup() as starting:
            await fleet.learn(lambda: _over(fleet, starting))
        fleet.tell_chaos(story)
        await fleet.wait("every gateway to run the last model", lambda: _deployed(fleet), _DEPLOY_S)
        await _ask_again(fleet)
        await _ask_without_torch(fleet)
        history = await lichen_commands.history(fleet)
        collect_results.history(story, fleet.stage.task, history, seen.turns())
        _tell_gateways(fleet)
        await fleet.stop_agents()
        collect_results.judged(story, await _judged(fleet))
        await asyncio.to_thread(_search, fleet, seen)
    story.missed = seen.missed


def _over(fleet: DemoFleet[GraphStage], starting: asyncio.TaskGroup) -> bool:
    """Whether the rounds are; on the way there, a site is told more, and the late one is started."""
    now, story = fleet.view.round, fleet.stage.story
    if now is None:
        return False
    if story.grown_after is None and _may_grow(fleet, now.version):
        story.grown_after = now.version
        _tell_more(fleet)
    if story.joined_after is None and now.version >= devices.join_round(fleet.options.rounds):
        story.joined_after = now.version
        for name, about in fleet.stage.waiting.items():
            fleet.stage.people[name] = about
            starting.create_task(fleet.start_agent(name))
            fleet.screen.say(f"{name} joins, after round {now.version}")
    return fleet.learned()


def _may_grow(fleet: DemoFleet[GraphStage], version: int) -> bool:
    """First the site shall have answered without: unless the rounds are nearly over before that."""
    rounds = fleet.options.rounds
    wanted = devices.grow_round(rounds)
    answers = prepare.answers_file(fleet.layout, devices.growing().name)
    return version >= wanted and (answers.is_file() or version >= max(wanted + 1, rounds - 2))


def _tell_more(fleet: DemoFleet[GraphStage]) -> None:
    site = devices.growing()
    later = fleet.stage.parts[site.name].later
    parts.append(devices.folder(fleet.layout, site.name), later)
    fleet.screen.say(
        f"{site.name} is told {len(later)} further facts, about {', '.join(site.later)}; nothing restarts"
    )


def _deployed(fleet: DemoFleet[GraphStage]) -> bool:
    """Whether every gateway runs the bundle of the last version."""
    pointer = fleet.view.model
    if pointer is None or pointer.version != fleet.options.rounds:
        return False
    fleet.stage.story.bundle = pointer.bundle.size
    running = [fleet.view.devices[name].model for name in fleet.stage.people if name in fleet.view.devices]
    return running == [pointer.bundle.digest] * len(fleet.stage.people)


async def _ask_again(fleet: DemoFleet[GraphStage]) -> None:
    """The same questions once more, now that all have learned."""
    layout, asked = fleet.layout, {}
    for gateway in fleet.stage.story.gateways:
        asked[gateway.name] = len(side_jobs.lines(prepare.answers_file(layout, gateway.name)))
        questions = prepare.questions_file(layout, gateway.name)
        lines = await asyncio.to_thread(questions.read_text, "utf-8")
        await asyncio.to_thread(_append, questions, lines)

    def answered() -> bool:
        return all(
            len(side_jobs.lines(prepare.answers_file(layout, one.name))) >= asked[one.name] + len(one.answers)
            for one in fleet.stage.story.gateways
        )

    await fleet.wait("every gateway to answer its questions", answered, _ASK_S)
    for gateway in fleet.stage.story.gateways:
        own = fleet.stage.parts[gateway.name]
        collect_results.answers(
            gateway, side_jobs.lines(prepare.answers_file(layout, gateway.name)), (*own.now, *own.later)
        )


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


async def _ask_without_torch(fleet: DemoFleet[GraphStage]) -> None:
    """One question by the command line of an environment that cannot train."""
    story, place = fleet.stage.story, fleet.place
    free = await asyncio.to_thread(place.torch_free)
    gateway = next(one for one in story.gateways if one.later)
    answer = gateway.answers[0]
    config = str(fleet.layout.config(gateway.name))
    words = ("agent", "ask", "--config", config, answer.head, answer.relation)
    try:
        given = (await lichen_commands.ask(*words, command=place.command))["tails"]
    except Transient as error:
        fleet.screen.say(str(error))
        return
    story.how, story.torch_free = place.how, free and bool(given)
    new = [tail["entity"] for tail in given if not tail["known"]][:_SAID]
    asked = f"{answer.head} {answer.relation}"
    fleet.screen.say(f"{gateway.name}, asked by hand what {asked}, besides what it knows: {', '.join(new)}")


def _tell_gateways(fleet: DemoFleet[GraphStage]) -> None:
    for gateway in fleet.stage.story.gateways:
        if gateway.name in fleet.children:
            gateway.starts = fleet.children[gateway.name].starts
        gateway.model = fleet.view.model.version if fleet.view.model else None


async def _judged(fleet: DemoFleet[GraphStage]) -> list[dict[str, Any]]:
    """Scores of every gateway and of each by itself."""
    stage, layout = fleet.stage, fleet.layout
    secret = await asyncio.to_thread(prepare.secret_file(layout).read_text)
    gateways = {
        one.name: {
            "private": str(prepare.private_file(layout, one.name)),
            "facts": (*stage.parts[one.name].now, *stage.parts[one.name].later),
            "held_out": stage.parts[one.name].held_out,
            "turns": {turn.round: turn.triples for turn in one.turns},
        }
        for one in stage.story.gateways
    }
    job = fleet.job(secret=secret.strip(), gateways=gateways)
    what = "the gateways' models and each gateway alone to be judged"
    found = await side_jobs.run(fleet, "judged", "lichen_lab.demo.plans.mmfed3_hide.evaluation", job, what)
    fleet.screen.say("what each gateway reaches with the fleet and by itself is known")
    return found


def _search(fleet: DemoFleet[GraphStage], seen: Searcher) -> None:
    """Look for what must not travel in all that did."""
    graph, layout = fleet.stage.graph, fleet.layout
    secret = bytes.fromhex(prepare.secret_file(layout).read_text())
    rows = dict(zip(graph.entities, graph.features[devices.TEXT], strict=True))
    sought = leak_search.secrets(secret, graph.entities, graph.relations, rows)
    fleet.stage.story.searched = leak_search.searched(seen, sought, secret, graph.entities)
