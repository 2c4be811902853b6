"""Checks of the demo on knowledge graphs: those that must hold for success, and findings."""

from collections.abc import Iterator
from typing import Final

from lichen_lab.demo.common_checks import CHANCES, percent, rounds_checks
from lichen_lab.demo.core.results import Check
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.mmfed3_hide.collect_results import SHOWN
from lichen_lab.demo.plans.mmfed3_hide.results import Gateway, GatewayAnswer, GraphResults

UP_LIMIT: Final = 0.2
"""Upper limit of an update, as a share of all rows in float32."""


def checks(results: GraphResults, options: Options) -> list[Check]:
    """All checks, the most important first."""
    return [
        *rounds_checks(results, options),
        _unseen(results),
        _bytes(results),
        _grown(results),
        _joined(results),
        _answered(results, options),
        _new_entity(results),
        _torch_free(results),
        _above_alone(results),
        *_each_alone(results),
    ]


def _unseen(results: GraphResults) -> Check:
    what = "no name, relation key or feature was seen at the broker"
    found = results.searched
    if found is None or not found.keys:
        return Check(what, ok=False, detail="nothing was searched, or the search finds nothing at all")
    if found.found or results.missed:
        first = "; ".join(found.found[:3]) or "nothing was found"
        return Check(what, ok=False, detail=f"{first}; {results.missed} messages were missed")
    sought = ", ".join(f"{count} {kind}" for kind, count in found.sought.items())
    detail = (
        f"{sought} in {found.bytes} bytes of {found.messages} messages; the search did find {found.keys} "
        "keyed hashes of entities, which may travel"
    )
    return Check(what, ok=True, detail=detail)


def _bytes(results: GraphResults) -> Check:
    what = f"an update is under {100 * UP_LIMIT:.0f} % of all the gateway's rows in float32"
    shares = {one.name: share for one in results.gateways if (share := one.share(lambda t: t.up)) is not None}
    if len(shares) < len(results.gateways):
        return Check(what, ok=False, detail="it was not measured")
    most = max(shares, key=lambda name: shares[name])
    down = max(one.share(lambda t: t.down) or 0.0 for one in results.gateways)
    shown = ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
    detail = f"up, in all rounds: {shown}; down, float16 with keys: at most {percent(down)}"
    return Check(what, shares[most] < UP_LIMIT, detail)


def _grown(results: GraphResults) -> Check:
    what = "a site that got further facts learned from them in the next round, and nothing restarted"
    site = next(one for one in results.gateways if one.later)
    wanted = site.triples + site.later
    first = next((turn.round for turn in site.turns if turn.triples == wanted), None)
    if results.grown_after is None or first is None:
        return Check(what, ok=False, detail=f"{site.name} still learns from {site.triples} facts")
    killed = int(site.name == results.struck)
    detail = (
        f"{site.name}: {site.later} facts after round {results.grown_after}, in round {first} it learned "
        f"from {wanted} instead of {site.triples}; started {site.starts - killed} time"
    )
    # One round may have been open already when the facts came.
    return Check(what, first <= results.grown_after + 2 and site.starts == 1 + killed, detail)


def _joined(results: GraphResults) -> Check:
    what = "a site that came later joined and delivered"
    late = next(one for one in results.gateways if one.late)
    if results.joined_after is None or not late.turns:
        return Check(what, ok=False, detail=f"{late.name} never delivered")
    before = [turn.round for turn in late.turns if turn.round <= results.joined_after]
    detail = (
        f"{late.name} was started after round {results.joined_after} and delivered in {len(late.turns)} "
        f"rounds, from round {late.turns[0].round} on"
    )
    return Check(what, not before and late.turns[-1].round == len(results.rounds), detail)


def _answered(results: GraphResults, options: Options) -> Check:
    what = "every gateway's ONNX model gives answers that it had no facts for"
    asked = [(one, answer) for one in results.gateways for answer in one.answers]
    silent = [f"{one.name}: {a.head} {a.relation}" for one, a in asked if a.after is None]
    old = [one.name for one in results.gateways if one.model != options.rounds]
    right = results.right
    if silent or old or right is None:
        return Check(what, ok=False, detail="; ".join(silent[:3]) or f"no last model on {', '.join(old)}")
    chance = sum(guessing(one, answer) for one, answer in asked) / len(asked)
    detail = (
        f"{percent(right)} of {len(asked)} questions have a held-out fact among the first {SHOWN} answers "
        f"(must be above {percent(CHANCES * chance)}, guessing is {percent(chance)})"
    )
    return Check(what, right > CHANCES * chance, detail)


def guessing(gateway: Gateway, answer: GatewayAnswer) -> float:
    """The chance that a true tail is among :data:`SHOWN` different entities drawn at random."""
    miss = 1.0
    for drawn in range(SHOWN):
        left = gateway.entities - drawn
        miss *= max(0, left - len(answer.truth)) / left
    return 1 - miss


def _new_entity(results: GraphResults) -> Check:
    what = "what it could not answer before the new facts, it answers after them"
    site = next(one for one in results.gateways if one.later)
    found = [a for a in site.answers if a.before is None and a.after is not None]
    if not found:
        return Check(what, ok=False, detail=f"{site.name} has no such question")
    detail = "; ".join(f"{a.head} {a.relation}: {', '.join((a.after or ())[:2])}" for a in found[:2])
    return Check(what, ok=True, detail=detail)


def _torch_free(results: GraphResults) -> Check:
    what = "a gateway answers without torch"
    if results.torch_free is None:
        return Check(what, ok=False, detail="lichen agent ask did not answer")
    return Check(what, results.torch_free, f"lichen agent ask in {results.how}")


def _above_alone(results: GraphResults) -> Check:
    what = "the fleet is above its gateways alone, on held-out facts"
    if results.mrr is None or results.mrr_alone is None:
        return Check(what, ok=False, detail="one of them was not evaluated")
    margin = results.mrr - results.mrr_alone
    alone = f"{results.mrr_alone:.3f} with structure alone and nobody"
    detail = f"MRR {results.mrr:.3f} against {alone}: {margin:+.3f}"
    return Check(what, margin > 0, detail)


def _each_alone(results: GraphResults) -> Iterator[Check]:
    """By gateway; a loss by sharing is reported too."""
    for one in results.gateways:
        fleet, alone = one.scores, one.scores_alone
        what = f"{one.name} gains by sharing"
        if fleet is None or alone is None:
            yield Check(what, ok=False, detail="it was not evaluated", must=False)
            continue
        detail = (
            f"MRR {fleet.mrr:.3f} against {alone.mrr:.3f}, hits@1 {percent(fleet.hits1)} against "
            f"{percent(alone.hits1)}, {fleet.questions} questions"
        )
        yield Check(what, fleet.mrr > alone.mrr, detail, must=False)
