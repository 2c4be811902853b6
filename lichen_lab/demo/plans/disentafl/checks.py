"""What must hold for the routed demo to have worked, and what was found besides: no tick without number."""

from collections.abc import Iterator

from lichen_lab.demo.common_checks import CHANCES, finished, memory, percent
from lichen_lab.demo.core.results import Check
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.disentafl.devices import IN_WORDS
from lichen_lab.demo.plans.disentafl.results import RoutedStory, WatchStory
from protocol.tasks.task import LABEL


def checks(story: RoutedStory, options: Options) -> list[Check]:
    """All checks, the most important first."""
    return [
        *finished(story, options),
        _routes(story),
        _bytes(story),
        _gained(story),
        _bundles(story, options),
        *_observed(story),
        _above_chance(story),
        _above_alone(story),
        *_each_alone(story),
    ]


def _routes(story: RoutedStory) -> Check:
    what = "every device fetched and sent blobs of its own route alone"
    moves = [(device, move) for device in story.trained for move in device.moves]
    silent = [device.name for device in story.trained if not any(move.fetched for move in device.moves)]
    stray = [
        f"{device.name}: {', '.join(move.stray)} in round {move.round}"
        for device, move in moves
        if move.stray
    ]
    if stray or silent or not moves:
        detail = "; ".join(stray[:3]) or f"nothing was seen of {', '.join(silent) or 'any device'}"
        return Check(what, ok=False, detail=detail)
    smallest = min((device.moves[-1].route for device in story.trained), key=len)
    missed = f"; {story.missed} messages could not be counted" if story.missed else ""
    detail = (
        f"{len(moves)} updates, counted at the broker; routes of {len(smallest)} blobs and more, out of "
        f"{len(story.blobs)}{missed}"
    )
    return Check(what, ok=True, detail=detail)


def _bytes(story: RoutedStory) -> Check:
    what = "every device moves less than the supernet"
    shares = {d.name: d.down / story.supernet for d in story.trained if d.down is not None and story.supernet}
    if len(shares) < len(story.trained):
        return Check(what, ok=False, detail="it was not measured")
    least, most = min(shares, key=lambda n: shares[n]), max(shares, key=lambda n: shares[n])
    kinds = {device.name: device.kind for device in story.trained}
    detail = (
        f"down in a round, of {story.supernet} bytes: {percent(shares[least])} ({least}, {kinds[least]}) to "
        f"{percent(shares[most])} ({most}, {kinds[most]})"
    )
    return Check(what, shares[most] < 1, detail)


def _gained(story: RoutedStory) -> Check:
    what = "a sensor that was plugged in changed the device's route, and nothing restarted"
    for device in story.trained:
        if not device.later:
            continue
        before, now = device.changes[:1], [m for m in device.changes if {*device.later} <= {*m.modalities}]
        if story.plugged_after is None or not before or not now or now[0] is before[0]:
            return Check(
                what, ok=False, detail=f"{device.name} still reads {', '.join(device.sensors)} alone"
            )
        killed = int(device.name == story.struck)
        detail = (
            f"{device.name}: plugged in after round {story.plugged_after}, from round {now[0].round} on "
            f"{len(now[0].route)} blobs instead of {len(before[0].route)}; started {_times(device.starts)}"
        )
        return Check(what, device.starts == 1 + killed, detail)
    return Check(what, ok=False, detail="no device has a later sensor")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _bundles(story: RoutedStory, options: Options) -> Check:
    what = "every device ended with an ONNX bundle of its own route, and predicts with it"
    wrong = [words for device in story.devices if (words := _odd(device, options.rounds))]
    different = {device.bundle.digest for device in story.devices if device.bundle}
    detail = (
        "; ".join(wrong)
        or f"{len(different)} different ones for {len(story.devices)} devices, of "
        f"{min(d.bundle.size for d in story.devices if d.bundle)} to "
        f"{max(d.bundle.size for d in story.devices if d.bundle)} bytes"
    )
    return Check(what, not wrong, detail)


def _odd(device: WatchStory, rounds: int) -> str:
    """What is wrong with a device's bundle; empty where nothing is."""
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


def _observed(story: RoutedStory) -> list[Check]:
    what = "a device that trained nothing, of a kind that nobody trained, predicts without torch"
    watched = story.observer
    if watched is None:
        return [Check(what, ok=False, detail="it never ran")]
    right = watched.right.get(LABEL)
    bound = CHANCES * story.chance(LABEL)
    heard = ", ".join(f"{IN_WORDS[name]} {percent(share)}" for name, share in watched.right.items())
    value = "nothing" if watched.explained is None else f"r2 {watched.explained:.2f}"
    torch = "import torch fails there" if watched.torch_free else "torch is there"
    detail = f"{heard} right, turning speed {value} (exercise must be above {percent(bound)}); {torch}"
    ok = right is not None and right > bound and watched.torch_free
    return [Check(what, ok, detail), *memory(watched)]


def _pairs(story: RoutedStory) -> Iterator[tuple[WatchStory, str, float]]:
    """Device, target and score, wherever there is one."""
    for device in story.devices:
        for target, score in device.scores.items():
            yield device, target, score


def _above_chance(story: RoutedStory) -> Check:
    what = "every device's model is above chance in all of its targets, on people nobody trained on"
    low = [
        f"{device.name}: {IN_WORDS[target]} {score:.2f}, chance is {story.chance(target):.2f}"
        for device, target, score in _pairs(story)
        if score <= story.chance(target)
    ]
    unjudged = [device.name for device in story.devices if set(device.scores) != set(device.targets)]
    if unjudged:
        return Check(what, ok=False, detail=f"not judged: {', '.join(unjudged)}")
    detail = "; ".join(low) or f"{len(list(_pairs(story)))} scores of {len(story.devices)} devices"
    return Check(what, not low, detail)


def _margins(device: WatchStory) -> list[float]:
    return [device.scores[name] - alone for name, alone in device.alone.items() if name in device.scores]


def _above_alone(story: RoutedStory) -> Check:
    what = "the fleet is above its devices alone, over devices and targets"
    margins = [margin for device in story.trained for margin in _margins(device)]
    if not margins:
        return Check(what, ok=False, detail="one of them was not judged")
    mean = sum(margins) / len(margins)
    better = sum(margin > 0 for margin in margins)
    detail = f"{100 * mean:+.1f} points (r2 counted in hundredths), better in {better} of {len(margins)}"
    return Check(what, mean > 0, detail)


def _each_alone(story: RoutedStory) -> Iterator[Check]:
    """By device; what sharing costs somebody is told, too."""
    for device in story.trained:
        margins = _margins(device)
        mean = sum(margins) / len(margins) if margins else None
        told = ", ".join(
            f"{IN_WORDS[name]} {100 * device.scores[name]:.0f} against {100 * alone:.0f}"
            for name, alone in device.alone.items()
            if name in device.scores
        )
        what = f"{device.name} ({device.kind}) gains by sharing"
        yield Check(what, mean is not None and mean > 0, told or "it was not judged", must=False)
