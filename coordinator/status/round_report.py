"""Report on a round: why it has its devices, and the weight of each: as data and as text. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from coordinator.aggregation.device_weights import NEAREST, shares
from coordinator.secure_aggregation.report import SecureReport

MAX_NAMES: Final = 20
"""Devices that the text explains; the data has all."""


def explained(found: Mapping[str, Any]) -> dict[str, Any]:
    """One round of :func:`coordinator.status.history.read`: who was selected, why, and what came of it.

    Returns:
        ``round`` and ``attempts``, each with ``attempt``, ``policy``, ``outcome``, ``devices`` (``device``,
        ``why``, and ``update``: None, or ``size``, ``lost``, ``loss``, ``blobs``) and ``passed``: device ->
        why it was not selected, of those that came next. ``weighing``: None, or what a guided round made of
        its devices (:class:`coordinator.aggregation.device_weights.WeightReport`). ``privacy``: None, or the
        account of its version (:class:`models.privacy.central_account.CentralAccount`). ``secure``: how each
        attempt of a secure round stands (:class:`coordinator.secure_aggregation.report.SecureReport`).
    """
    updates = {update["device"]: update for update in found["updates"]}
    return {
        "round": found["round"],
        "attempts": [
            {
                "attempt": attempt["attempt"],
                "policy": attempt["policy"],
                "outcome": attempt["outcome"] or "open",
                "devices": [
                    {"device": device, "why": why, "update": _update(updates.get(device))}
                    for device, why in sorted(attempt["why"].items())
                ],
                "passed": attempt["passed"],
            }
            for attempt in found["attempts"]
        ],
        "weighing": found["weighing"],
        "privacy": found["privacy"],
        "secure": found["secure"],
    }


def _update(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "size": found["size"],
        "lost": found["lost"],
        "loss": found["metrics"].get("loss"),
        "blobs": found["blobs"],
    }


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """The report as text."""
    for attempt in told["attempts"]:
        policy = f", chosen by {attempt['policy']}" if attempt["policy"] else ""
        yield f"round {told['round']}, attempt {attempt['attempt']}: {attempt['outcome']}{policy}"
        devices = attempt["devices"]
        for one in devices[:MAX_NAMES]:
            yield f"  {one['device']}: {one['why']}; {_came(one['update'])}"
        if len(devices) > MAX_NAMES:
            yield f"  and {len(devices) - MAX_NAMES} more"
        if attempt["passed"]:
            yield "  not selected, the next in line first:"
            yield from (f"    {device}: {why}" for device, why in attempt["passed"].items())
    for one in told["secure"]:
        yield from SecureReport.model_validate(one).lines()
    if told["privacy"] is not None:
        yield f"privacy: {told['privacy']['words']}"
    if told["weighing"] is not None:
        yield from _weighed(told["weighing"])


def _weighed(weighing: Mapping[str, Any]) -> Iterator[str]:
    """The weight of each device, the lightest first, and the devices most similar to it."""
    for part, weights in weighing["weights"].items():
        yield f"weights of {part} (1 is an equal share; the lightest first):"
        lightest = list(shares({part: weights}))
        for _, device, share in lightest[:MAX_NAMES]:
            row = weighing["similarity"].get(part, {}).get(device)
            yield f"  {device}: {share:.2f}, {weights[device]:.3g} of the whole{_alike(row)}"
        if len(lightest) > MAX_NAMES:
            yield f"  and {len(lightest) - MAX_NAMES} more"
    if weighing["metrics"]:
        measured = ", ".join(f"{name} {value:.3g}" for name, value in weighing["metrics"].items())
        yield f"trained on the labelled windows: {measured}"
    yield from (f"warning: {words}" for words in weighing["warnings"])


def _alike(row: Mapping[str, Any] | None) -> str:
    if row is None or not row["of"]:
        return ""
    others = list(row["others"].items())
    named = others if len(others) <= 2 * NEAREST else [*others[:NEAREST], *others[-NEAREST:]]
    words = ", ".join(f"{device} {value:.2f}" for device, value in named)
    return f"; similarity to the other {row['of']}: mean {row['mean']:.2f} ({words})"


def _came(update: Mapping[str, Any] | None) -> str:
    if update is None:
        return "no update is here"
    if update["lost"]:
        return f"its update was lost: {update['lost']}"
    loss = "" if update["loss"] is None else f"loss {update['loss']:.3g}, "
    blobs = "" if update["blobs"] is None else f", {len(update['blobs'])} blobs"
    return f"delivered ({loss}{update['size']:,} bytes{blobs})"
