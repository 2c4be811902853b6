"""What must hold for the demo on knowledge graphs to have worked, and what was found besides."""

from collections.abc import Iterator
from typing import Final

from lichen_lab.demo.common_checks import CHANCES, finished, percent
from lichen_lab.demo.core.results import Check
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.mmfed3_hide.collect_results import SHOWN
from lichen_lab.demo.plans.mmfed3_hide.results import Gateway, GraphStory, ObserverAnswer

UP_LIMIT: Final = 0.2
"""Of all rows in float32: what an update may weigh."""


def checks(story: GraphStory, options: Options) -> list[Check]:
    """All checks, the most important first."""
    return [
        *finished(story, options),
        _unseen(story),
        _bytes(story),
        _grown(story),
        _joined(story),
        _answered(story, options),
        _new_entity(story),
        _torch_free(story),
        _above_alone(story),
        *_each_alone(story),
    ]


def _unseen(story: GraphStory) -> Check:
    what = "no name, relation key or feature was seen at the broker"
    found = story.searched
    if found is None or not found.keys:
        return Check(what, ok=False, detail="nothing was searched, or the search finds nothing at all")
    if found.found or story.missed:
        first = "; ".join(found.found[:3]) or "nothing was found"
        return Check(what, ok=False, detail=f"{first}; {story.missed} messages were missed")
    sought = ", ".join(f"{count} {kind}" for kind, count in found.sought.items())
    detail = (
        f"{sought} in {found.bytes} bytes of {found.messages} messages; the search did find {found.keys} "
        "keyed hashes of entities, which may travel"
    )
    return Check(what, ok=True, detail=detail)


def _bytes(story: GraphStory) -> Check:
    what = f"an update is under {100 * UP_LIMIT:.0f} % of all the gateway's rows in float32"
    shares = {one.name: share for one in story.gateways if (share := one.share(lambda t: t.up)) is not None}
    if len(shares) < len(story.gateways):
        return Check(what, ok=False, detail="it was not measured")
    most = max(shares, key=lambda name: shares[name])
    down = max(one.share(lambda t: t.down) or 0.0 for one in story.gateways)
    told = ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
    detail = f"up, in all rounds: {told}; down, float16 with keys: at most {percent(down)}"
    return Check(what, shares[most] < UP_LIMIT, detail)


def _grown(story: GraphStory) -> Check:
    what = "a site that was told more learned from it in the next round, and nothing restarted"
    site = next(one for one in story.gateways if one.later)
    wanted = site.triples + site.later
    first = next((turn.round for turn in site.turns if turn.triples == wanted), None)
    if story.grown_after is None or first is None:
        return Check(what, ok=False, detail=f"{site.name} still learns from {site.triples} facts")
    killed = int(site.name == story.struck)
    detail = (
        f"{site.name}: {site.later} facts after round {story.grown_after}, in round {first} it learned from "
        f"{wanted} instead of {site.triples}; started {site.starts - killed} time"
    )
    # One round may have been open already when the facts came.
    return Check(what, first <= story.grown_after + 2 and site.starts == 1 + killed, detail)


def _joined(story: GraphStory) -> Check:
    what = "a site that came later joined and delivered"
    late = next(one for one in story.gateways if one.late)
    if story.joined_after is None or not late.turns:
        return Check(what, ok=False, detail=f"{late.name} never delivered")
    before = [turn.round for turn in late.turns if turn.round <= story.joined_after]
    detail = (
        f"{late.name} was started after round {story.joined_after} and delivered in {len(late.turns)} "
        f"rounds, from round {late.turns[0].round} on"
    )
    return Check(what, not before and late.turns[-1].round == len(story.rounds), detail)


def _answered(story: GraphStory, options: Options) -> Check:
    what = "every gateway's ONNX model gives answers that nobody told it"
    asked = [(one, answer) for one in story.gateways for answer in one.answers]
    silent = [f"{one.name}: {a.head} {a.relation}" for one, a in asked if a.after is None]
    old = [one.name for one in story.gateways if one.model != options.rounds]
    right = story.right
    if silent or old or right is None:
        return Check(what, ok=False, detail="; ".join(silent[:3]) or f"no last model on {', '.join(old)}")
    chance = sum(guessing(one, answer) for one, answer in asked) / len(asked)
    detail = (
        f"{percent(right)} of {len(asked)} questions have a held-out fact among the first {SHOWN} answers "
        f"(must be above {percent(CHANCES * chance)}, guessing is {percent(chance)})"
    )
    return Check(what, right > CHANCES * chance, detail)


def guessing(gateway: Gateway, answer: ObserverAnswer) -> float:
    """The chance that one of some different entities drawn at random is a true tail."""
    miss = 1.0
    for drawn in range(SHOWN):
        left = gateway.entities - drawn
        miss *= max(0, left - len(answer.truth)) / left
    return 1 - miss


def _new_entity(story: GraphStory) -> Check:
    what = "what it could not answer before the new facts, it answers after them"
    site = next(one for one in story.gateways if one.later)
    found = [a for a in site.answers if a.before is None and a.after is not None]
    if not found:
        return Check(what, ok=False, detail=f"{site.name} has no such question")
    detail = "; ".join(f"{a.head} {a.relation}: {', '.join((a.after or ())[:2])}" for a in found[:2])
    return Check(what, ok=True, detail=detail)


def _torch_free(story: GraphStory) -> Check:
    what = "a gateway answers without torch"
    if story.torch_free is None:
        return Check(what, ok=False, detail="lichen agent ask did not answer")
    return Check(what, story.torch_free, f"lichen agent ask in {story.how}")


def _above_alone(story: GraphStory) -> Check:
    what = "the fleet is above its gateways alone, on facts that nobody was told"
    if story.mrr is None or story.mrr_alone is None:
        return Check(what, ok=False, detail="one of them was not judged")
    margin = story.mrr - story.mrr_alone
    detail = (
        f"MRR {story.mrr:.3f} against {story.mrr_alone:.3f} with structure alone and nobody: {margin:+.3f}"
    )
    return Check(what, margin > 0, detail)


def _each_alone(story: GraphStory) -> Iterator[Check]:
    """By gateway; what sharing costs somebody is told, too."""
    for one in story.gateways:
        fleet, alone = one.scores, one.scores_alone
        what = f"{one.name} gains by sharing"
        if fleet is None or alone is None:
            yield Check(what, ok=False, detail="it was not judged", must=False)
            continue
        detail = (
            f"MRR {fleet.mrr:.3f} against {alone.mrr:.3f}, hits@1 {percent(fleet.hits1)} against "
            f"{percent(alone.hits1)}, {fleet.questions} questions"
        )
        yield Check(what, fleet.mrr > alone.mrr, detail, must=False)
