"""Checks of the demo without labels: those that must hold for success, and findings."""

from lichen_lab.demo.common_checks import deployment_checks, percent, rounds_checks
from lichen_lab.demo.core.results import Check
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.tactfl.results import LABELLED, RANDOM, Rival, TactflResults


def checks(results: TactflResults, options: Options) -> list[Check]:
    """All checks, the most important first."""
    return [
        *rounds_checks(results, options),
        _unlabelled(results),
        _broken(results),
        _floor(results),
        _above(results, RANDOM),
        # On so few people this is a matter of points: only reported; the study over seeds decides.
        _above(results, LABELLED, must=False),
        _fine_tuned(results),
        *deployment_checks(results),
    ]


def _unlabelled(results: TactflResults) -> Check:
    what = "the devices learned without a label"
    windows = sum(device.windows for device in results.devices)
    silent = [device.name for device in results.devices if not device.windows]
    labels = {device.name: sum(map(sum, device.counts.values())) for device in results.devices}
    counted = [f"{name} counted {number}" for name, number in labels.items() if number]
    if silent or counted:
        return Check(
            what, ok=False, detail="; ".join([*counted, *(f"{name} learned on none" for name in silent)])
        )
    known = f"{sum(results.labelled)} labelled at the coordinator"
    detail = f"{windows} windows on {len(results.devices)} devices; {known}"
    return Check(what, ok=True, detail=detail)


def _broken(results: TactflResults) -> Check:
    """Judged on the later half of the rounds: in the first ones all models are still alike."""
    what = "the broken device weighs least of all, and less than an equal share"
    shares = {d.name: share for d in results.devices if (share := results.relative(d.name)) is not None}
    own = shares.pop(results.broken, None)
    if own is None or not shares:
        return Check(what, ok=False, detail="the coordinator has weighed nobody")
    least = min(shares, key=lambda name: shares[name])
    detail = f"{results.broken} {own:.2f} of an equal share; the next, {least}, {shares[least]:.2f}"
    return Check(what, own < min(1.0, shares[least]), detail)


def _floor(results: TactflResults) -> Check:
    """The paper's own warning: an unusual but honest device must not be excluded."""
    what = "nobody was pushed out whole"
    least = min(
        (
            (one.weights[part][name] / one.equal(part), name, part, one.round)
            for one in results.weighed
            for part in one.weights
            for name in one.weights[part]
        ),
        default=None,
    )
    if least is None:
        return Check(what, ok=False, detail="the coordinator has weighed nobody")
    share, name, part, number = least
    warned = sum(bool(one.warnings) for one in results.weighed)
    warnings = f"; the coordinator warned in {warned} rounds" if warned else ""
    detail = f"at the least {share:.2f} of an equal share ({name}, {part}, round {number}){warnings}"
    return Check(what, share > 0, detail)


def _above(results: TactflResults, name: str, *, must: bool = True) -> Check:
    what = f"the fleet's model is above {name}"
    rival: Rival = results.rival(name)
    if results.accuracy is None or rival.mean is None:
        return Check(what, ok=False, detail="one of them was not evaluated", must=must)
    margin = 100 * (results.accuracy - rival.mean)
    seeds = ", ".join(percent(one) for one in rival.accuracies)
    detail = f"{percent(results.accuracy)} against {seeds}: {margin:+.1f} points on average"
    return Check(what, margin > 0, detail, must=must)


def _fine_tuned(results: TactflResults) -> Check:
    what = "fine-tuning on the labelled windows adds to what the fleet has learned"
    if results.accuracy is None or results.frozen is None:
        return Check(what, ok=False, detail="one of them was not evaluated", must=False)
    margin = 100 * (results.accuracy - results.frozen)
    before, after = percent(results.frozen), percent(results.accuracy)
    detail = f"{before} in the round before, {after} after: {margin:+.1f} points"
    return Check(what, margin > 0, detail, must=False)
