"""Steps of the demo on knowledge graphs: train, add facts, add a site, ask, compare, search."""

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
    """Run the demo, and fill in its results."""
    results, traffic = fleet.stage.results, Searcher(FLEET)
    async with fleet.running(), fleet.onlooking(traffic):
        async with asyncio.TaskGroup() as starting:
            await fleet.learn(lambda: _over(fleet, starting))
        fleet.record_chaos(results)
        await fleet.wait("every gateway to run the last model", lambda: _deployed(fleet), _DEPLOY_S)
        await _ask_again(fleet)
        await _ask_without_torch(fleet)
        history = await lichen_commands.history(fleet)
        collect_results.take_history(results, fleet.stage.task, history, traffic.turns())
        _take_gateways(fleet)
        await fleet.stop_agents()
        collect_results.take_scores(results, await _judged(fleet))
        await asyncio.to_thread(_search, fleet, traffic)
    results.missed = traffic.missed


def _over(fleet: DemoFleet[GraphStage], starting: asyncio.TaskGroup) -> bool:
    """Whether the rounds are over; adds facts to a site and starts the late one on the way."""
    now, results = fleet.view.round, fleet.stage.results
    if now is None:
        return False
    if results.grown_after is None and _may_grow(fleet, now.version):
        results.grown_after = now.version
        _add_facts(fleet)
    if results.joined_after is None and now.version >= devices.join_round(fleet.options.rounds):
        results.joined_after = now.version
        for name, about in fleet.stage.waiting.items():
            fleet.stage.people[name] = about
            starting.create_task(fleet.start_agent(name))
            fleet.screen.say(f"{name} joins, after round {now.version}")
    return fleet.learned()


def _may_grow(fleet: DemoFleet[GraphStage], version: int) -> bool:
    """Whether the site has answered without the new facts, or the rounds are nearly over."""
    rounds = fleet.options.rounds
    wanted = devices.grow_round(rounds)
    answers = prepare.answers_file(fleet.layout, devices.growing().name)
    return version >= wanted and (answers.is_file() or version >= max(wanted + 1, rounds - 2))


def _add_facts(fleet: DemoFleet[GraphStage]) -> None:
    site = devices.growing()
    later = fleet.stage.parts[site.name].later
    parts.append(devices.folder(fleet.layout, site.name), later)
    fleet.screen.say(
        f"{site.name} gets {len(later)} further facts, about {', '.join(site.later)}; nothing restarts"
    )


def _deployed(fleet: DemoFleet[GraphStage]) -> bool:
    """Whether every gateway runs the bundle of the last version."""
    pointer = fleet.view.model
    if pointer is None or pointer.version != fleet.options.rounds:
        return False
    fleet.stage.results.bundle = pointer.bundle.size
    running = [fleet.view.devices[name].model for name in fleet.stage.people if name in fleet.view.devices]
    return running == [pointer.bundle.digest] * len(fleet.stage.people)


async def _ask_again(fleet: DemoFleet[GraphStage]) -> None:
    """Ask the same questions again after training."""
    layout, asked = fleet.layout, {}
    for gateway in fleet.stage.results.gateways:
        asked[gateway.name] = len(side_jobs.lines(prepare.answers_file(layout, gateway.name)))
        questions = prepare.questions_file(layout, gateway.name)
        lines = await asyncio.to_thread(questions.read_text, "utf-8")
        await asyncio.to_thread(_append, questions, lines)

    def answered() -> bool:
        return all(
            len(side_jobs.lines(prepare.answers_file(layout, one.name))) >= asked[one.name] + len(one.answers)
            for one in fleet.stage.results.gateways
        )

    await fleet.wait("every gateway to answer its questions", answered, _ASK_S)
    for gateway in fleet.stage.results.gateways:
        own = fleet.stage.parts[gateway.name]
        collect_results.take_answers(
            gateway, side_jobs.lines(prepare.answers_file(layout, gateway.name)), (*own.now, *own.later)
        )


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


async def _ask_without_torch(fleet: DemoFleet[GraphStage]) -> None:
    """Ask one question on the command line of an environment without torch."""
    results, place = fleet.stage.results, fleet.place
    free = await asyncio.to_thread(place.torch_free)
    gateway = next(one for one in results.gateways if one.later)
    answer = gateway.answers[0]
    config = str(fleet.layout.config(gateway.name))
    words = ("agent", "ask", "--config", config, answer.head, answer.relation)
    try:
        given = (await lichen_commands.ask(*words, command=place.command))["tails"]
    except Transient as error:
        fleet.screen.say(str(error))
        return
    results.how, results.torch_free = place.how, free and bool(given)
    new = [tail["entity"] for tail in given if not tail["known"]][:_SAID]
    asked = f"{answer.head} {answer.relation}"
    fleet.screen.say(f"{gateway.name}, asked by hand what {asked}, besides what it knows: {', '.join(new)}")


def _take_gateways(fleet: DemoFleet[GraphStage]) -> None:
    for gateway in fleet.stage.results.gateways:
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
        for one in stage.results.gateways
    }
    job = fleet.job(secret=secret.strip(), gateways=gateways)
    what = "the gateways' models and each gateway alone to be evaluated"
    found = await side_jobs.run(fleet, "judged", "lichen_lab.demo.plans.mmfed3_hide.evaluation", job, what)
    fleet.screen.say("what each gateway reaches with the fleet and by itself is known")
    return found


def _search(fleet: DemoFleet[GraphStage], searcher: Searcher) -> None:
    """Search all traffic for data that must not travel."""
    graph, layout = fleet.stage.graph, fleet.layout
    secret = bytes.fromhex(prepare.secret_file(layout).read_text())
    rows = dict(zip(graph.entities, graph.features[devices.TEXT], strict=True))
    sought = leak_search.secrets(secret, graph.entities, graph.relations, rows)
    fleet.stage.results.searched = leak_search.search_outcome(searcher, sought, secret, graph.entities)
