"""Groups of simulated devices that train at once (``--devices-at-once``); else each device is one by itself.

Values differ in their last bits with the group that a device is in. So groups come from the fleet, the
selection and the option, and not from the number of processes: a process has whole shards, and devices of
different shards are never in one group.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

from lichen_lab.simulation.training.device import TRAIN, DeviceResult, Site, VirtualDevice
from models import registry
from models.contract import Blobs, LocalResult
from models.training.group_client import GroupClient, GroupMember
from protocol.errors import Misconfigured, Refused, Transient

OPTION = "--devices-at-once"


def require_groups(site: Site, ray: str) -> None:
    """Check that devices can train as many at once as the site says.

    Raises:
        Misconfigured: they cannot; the message says why.
    """
    if site.at_once == 1:
        return
    if site.at_once < 1:
        raise Misconfigured(f"{OPTION} {site.at_once}: at least 1")
    if ray:
        raise Misconfigured(
            f"{OPTION} {site.at_once} is not for a Ray cluster, where devices of lost processes change their "
            f"group: use --workers, or leave {OPTION} out"
        )
    spec = registry.method(site.task.method)  # the site's own parts cannot be sent to a process
    why = f"method {spec.name!r} trains its devices one by one"
    if spec.in_groups:
        why = cast("GroupClient", spec.client()).group_trouble(site.task)
    if why:
        raise Misconfigured(f"task {site.task.name!r}, {OPTION} {site.at_once}: {why}; leave {OPTION} out")


def shards(site: Site, devices: Sequence[VirtualDevice]) -> list[list[VirtualDevice]]:
    """The devices, dealt in turn to as many shards as a round has groups."""
    count = len(devices)
    if site.at_once > 1:
        count = math.ceil(min(site.task.rounds.devices_per_round or count, count) / site.at_once)
    return [list(devices[first::count]) for first in range(count)]


def deliver_all(
    site: Site, shard: Sequence[VirtualDevice], state: Blobs, round_: int
) -> Iterator[DeviceResult]:
    """The results of the devices of a shard that take part in a round, in their order."""
    groups = max(1, math.ceil(len(shard) / site.at_once))
    size = max(1, math.ceil(len(shard) / groups))  # of equal size: a group of a few devices gains little
    for first in range(0, len(shard), size):
        group = shard[first : first + size]
        made = _trained_at_once(site, group, state, round_) if len(group) > 1 else {}
        for device in group:
            yield site.deliver(device, state, round_, made.get(device.name))


def _trained_at_once(
    site: Site, devices: Sequence[VirtualDevice], state: Blobs, round_: int
) -> dict[str, tuple[GroupMember, LocalResult]]:
    """By device, what it trained on and what it made; others have to be trained by themselves."""
    by_route: dict[tuple[str, ...], list[GroupMember]] = {}
    for device in devices:
        if device.role == TRAIN:
            with suppress(Refused, Transient):  # by itself, it says why it cannot train
                context = site.context(device, round_)
                route = site.routed(device, context, state)
                profile, windows = device.material(site.task, round_)
                member = GroupMember(replace(context, profile=profile), windows, device.private)
                by_route.setdefault(tuple(route), []).append(member)
    made = {}
    for names, members in by_route.items():
        route = {name: state[name] for name in names}
        results = cast("GroupClient", site.client).train_group(members, route)
        for member, result in zip(members, results, strict=True):
            if result is not None:
                made[member.context.device] = member, result
    return made
