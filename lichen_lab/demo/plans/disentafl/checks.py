"""Checks of the routed demo: those that must hold for success, and findings. Each tick has its number."""

from collections.abc import Iterator

from lichen_lab.demo.common_checks import CHANCES, memory_checks, percent, rounds_checks
from lichen_lab.demo.core.results import Check
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.disentafl.devices import IN_WORDS
from lichen_lab.demo.plans.disentafl.results import DisentaflResults, WatchResults
from protocol.tasks.task import LABEL


def checks(results: DisentaflResults, options: Options) -> list[Check]:
    """All checks, the most important first."""
    return [
        *rounds_checks(results, options),
        _routes(results),
        _bytes(results),
        _gained(results),
        _bundles(results, options),
        *_observed(results),
        _above_chance(results),
        _above_alone(results),
        *_each_alone(results),
    ]


def _routes(results: DisentaflResults) -> Check:
    what = "every device fetched and sent blobs of its own route alone"
    moves = [(device, move) for device in results.trained for move in device.moves]
    silent = [device.name for device in results.trained if not any(move.fetched for move in device.moves)]
    stray = [
        f"{device.name}: {', '.join(move.stray)} in round {move.round}"
        for device, move in moves
        if move.stray
    ]
    if stray or silent or not moves:
        detail = "; ".join(stray[:3]) or f"nothing was seen of {', '.join(silent) or 'any device'}"
        return Check(what, ok=False, detail=detail)
    smallest = min((device.moves[-1].route for device in results.trained), key=len)
    missed = f"; {results.missed} messages could not be counted" if results.missed else ""
    detail = (
        f"{len(moves)} updates, counted at the broker; routes of {len(smallest)} blobs and more, out of "
        f"{len(results.blobs)}{missed}"
    )
    return Check(what, ok=True, detail=detail)


def _bytes(results: DisentaflResults) -> Check:
    what = "every device moves less than the supernet"
    shares = {
        d.name: d.down / results.supernet for d in results.trained if d.down is not None and results.supernet
    }
    if len(shares) < len(results.trained):
        return Check(what, ok=False, detail="it was not measured")
    least, most = min(shares, key=lambda n: shares[n]), max(shares, key=lambda n: shares[n])
    kinds = {device.name: device.kind for device in results.trained}
    detail = (
        f"down in a round, of {results.supernet} bytes: {percent(shares[least])} ({least}, {kinds[least]}) "
        f"to {percent(shares[most])} ({most}, {kinds[most]})"
    )
    return Check(what, shares[most] < 1, detail)


def _gained(results: DisentaflResults) -> Check:
    what = "a sensor that was plugged in changed the device's route, and nothing restarted"
    for device in results.trained:
        if not device.later:
            continue
        before, now = device.changes[:1], [m for m in device.changes if {*device.later} <= {*m.modalities}]
        if results.plugged_after is None or not before or not now or now[0] is before[0]:
            return Check(
                what, ok=False, detail=f"{device.name} still reads {', '.join(device.sensors)} alone"
            )
        killed = int(device.name == results.struck)
        detail = (
            f"{device.name}: plugged in after round {results.plugged_after}, from round {now[0].round} on "
            f"{len(now[0].route)} blobs instead of {len(before[0].route)}; started {_times(device.starts)}"
        )
        return Check(what, device.starts == 1 + killed, detail)
    return Check(what, ok=False, detail="no device has a later sensor")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _bundles(results: DisentaflResults, options: Options) -> Check:
    what = "every device ended with an ONNX bundle of its own route, and predicts with it"
    wrong = [words for device in results.devices if (words := _odd(device, options.rounds))]
    different = {device.bundle.digest for device in results.devices if device.bundle}
    detail = (
        "; ".join(wrong)
        or f"{len(different)} different ones for {len(results.devices)} devices, of "
        f"{min(d.bundle.size for d in results.devices if d.bundle)} to "
        f"{max(d.bundle.size for d in results.devices if d.bundle)} bytes"
    )
    return Check(what, not wrong, detail)


def _odd(device: WatchResults, rounds: int) -> str:
    """What is wrong with a device's bundle; empty if nothing is."""
    if device.bundle is None:
        return f"{device.name} has none"
    if device.observes:
        reads, predicts = device.sensors, device.targets
    elif device.moves:
        reads, predicts = device.moves[-1].modalities, device.moves[-1].targets
    else:
        return f"{device.name} never sent an update"
    if (device.bundle.modalities, device.bundle.targets) != (reads, predicts):
        return (
            f"{device.name} reads {', '.join(reads)} and predicts {', '.join(predicts)}, its bundle "
            f"{', '.join(device.bundle.modalities)} and {', '.join(device.bundle.targets)}"
        )
    if device.bundle.version != rounds:
        return f"{device.name} runs version {device.bundle.version}"
    return "" if device.predictions else f"{device.name} predicts nothing with it"


def _observed(results: DisentaflResults) -> list[Check]:
    what = "a device that trained nothing, of a kind that nobody trained, predicts without torch"
    watched = results.observer
    if watched is None:
        return [Check(what, ok=False, detail="it never ran")]
    right = watched.right.get(LABEL)
    bound = CHANCES * results.chance(LABEL)
    heard = ", ".join(f"{IN_WORDS[name]} {percent(share)}" for name, share in watched.right.items())
    value = "nothing" if watched.explained is None else f"r2 {watched.explained:.2f}"
    torch = "import torch fails there" if watched.torch_free else "torch is there"
    detail = f"{heard} right, turning speed {value} (exercise must be above {percent(bound)}); {torch}"
    ok = right is not None and right > bound and watched.torch_free
    return [Check(what, ok, detail), *memory_checks(watched)]


def _pairs(results: DisentaflResults) -> Iterator[tuple[WatchResults, str, float]]:
    """All device, target and score triples."""
    for device in results.devices:
        for target, score in device.scores.items():
            yield device, target, score


def _above_chance(results: DisentaflResults) -> Check:
    what = "every device's model is above chance in all of its targets, on people nobody trained on"
    low = [
        f"{device.name}: {IN_WORDS[target]} {score:.2f}, chance is {results.chance(target):.2f}"
        for device, target, score in _pairs(results)
        if score <= results.chance(target)
    ]
    unjudged = [device.name for device in results.devices if set(device.scores) != set(device.targets)]
    if unjudged:
        return Check(what, ok=False, detail=f"not evaluated: {', '.join(unjudged)}")
    detail = "; ".join(low) or f"{len(list(_pairs(results)))} scores of {len(results.devices)} devices"
    return Check(what, not low, detail)


def _margins(device: WatchResults) -> list[float]:
    return [device.scores[name] - alone for name, alone in device.alone.items() if name in device.scores]


def _above_alone(results: DisentaflResults) -> Check:
    what = "the fleet is above its devices alone, over devices and targets"
    margins = [margin for device in results.trained for margin in _margins(device)]
    if not margins:
        return Check(what, ok=False, detail="one of them was not evaluated")
    mean = sum(margins) / len(margins)
    better = sum(margin > 0 for margin in margins)
    detail = f"{100 * mean:+.1f} points (r2 counted in hundredths), better in {better} of {len(margins)}"
    return Check(what, mean > 0, detail)


def _each_alone(results: DisentaflResults) -> Iterator[Check]:
    """By device; a loss by sharing is reported too."""
    for device in results.trained:
        margins = _margins(device)
        mean = sum(margins) / len(margins) if margins else None
        shown = ", ".join(
            f"{IN_WORDS[name]} {100 * device.scores[name]:.0f} against {100 * alone:.0f}"
            for name, alone in device.alone.items()
            if name in device.scores
        )
        what = f"{device.name} ({device.kind}) gains by sharing"
        yield Check(what, mean is not None and mean > 0, shown or "it was not evaluated", must=False)
