"""What must hold for the demo without labels to have worked, and what was found besides."""

from lichen_lab.demo.common_checks import deployed, finished, percent
from lichen_lab.demo.core.results import Check
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.tactfl.results import LABELLED, RANDOM, Rival, UnlabelledStory


def checks(story: UnlabelledStory, options: Options) -> list[Check]:
    """All checks, the most important first."""
    return [
        *finished(story, options),
        _unlabelled(story),
        _broken(story),
        _floor(story),
        _above(story, RANDOM),
        # On so few people this is a matter of points: told, and left to the study over seeds.
        _above(story, LABELLED, must=False),
        _fine_tuned(story),
        *deployed(story),
    ]


def _unlabelled(story: UnlabelledStory) -> Check:
    what = "the devices learned without a label"
    windows = sum(device.windows for device in story.devices)
    silent = [device.name for device in story.devices if not device.windows]
    labels = {device.name: sum(map(sum, device.counts.values())) for device in story.devices}
    told = [f"{name} counted {number}" for name, number in labels.items() if number]
    if silent or told:
        return Check(
            what, ok=False, detail="; ".join([*told, *(f"{name} learned on none" for name in silent)])
        )
    known = f"{sum(story.labelled)} labelled at the coordinator"
    detail = f"{windows} windows on {len(story.devices)} devices; {known}"
    return Check(what, ok=True, detail=detail)


def _broken(story: UnlabelledStory) -> Check:
    """Of the later half of the rounds: in the first ones all models still are one."""
    what = "the broken device weighs least of all, and less than an equal share"
    shares = {d.name: share for d in story.devices if (share := story.relative(d.name)) is not None}
    own = shares.pop(story.broken, None)
    if own is None or not shares:
        return Check(what, ok=False, detail="the coordinator has weighed nobody")
    least = min(shares, key=lambda name: shares[name])
    detail = f"{story.broken} {own:.2f} of an equal share; the next, {least}, {shares[least]:.2f}"
    return Check(what, own < min(1.0, shares[least]), detail)


def _floor(story: UnlabelledStory) -> Check:
    """The paper's own warning: who is unusual and honest must not be pushed out."""
    what = "nobody was pushed out whole"
    least = min(
        (
            (one.weights[part][name] / one.equal(part), name, part, one.round)
            for one in story.weighed
            for part in one.weights
            for name in one.weights[part]
        ),
        default=None,
    )
    if least is None:
        return Check(what, ok=False, detail="the coordinator has weighed nobody")
    share, name, part, number = least
    warned = sum(bool(one.warnings) for one in story.weighed)
    warnings = f"; the coordinator warned in {warned} rounds" if warned else ""
    detail = f"at the least {share:.2f} of an equal share ({name}, {part}, round {number}){warnings}"
    return Check(what, share > 0, detail)


def _above(story: UnlabelledStory, name: str, *, must: bool = True) -> Check:
    what = f"the fleet's model is above {name}"
    rival: Rival = story.rival(name)
    if story.accuracy is None or rival.mean is None:
        return Check(what, ok=False, detail="one of them was not judged", must=must)
    margin = 100 * (story.accuracy - rival.mean)
    seeds = ", ".join(percent(one) for one in rival.accuracies)
    detail = f"{percent(story.accuracy)} against {seeds}: {margin:+.1f} points on average"
    return Check(what, margin > 0, detail, must=must)


def _fine_tuned(story: UnlabelledStory) -> Check:
    what = "fine-tuning on the labelled windows adds to what the fleet has learned"
    if story.accuracy is None or story.frozen is None:
        return Check(what, ok=False, detail="one of them was not judged", must=False)
    margin = 100 * (story.accuracy - story.frozen)
    detail = (
        f"{percent(story.frozen)} in the round before, {percent(story.accuracy)} after: {margin:+.1f} points"
    )
    return Check(what, margin > 0, detail, must=False)
