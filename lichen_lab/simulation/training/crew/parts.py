"""The parts of a simulation: its devices, where they train, and who takes part in a round."""

from collections.abc import Mapping

from lichen_lab.simulation.data.streams import Fixed, RoundStream
from lichen_lab.simulation.training.device import PROTOTYPE, Role, Site, VirtualDevice
from lichen_lab.simulation.training.ray_workers import RayWorkers
from lichen_lab.simulation.training.selection import Choice
from lichen_lab.simulation.training.workers import Crew, LocalWorker, Workers
from models import registry
from models.contract import Profile, WindowSet
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

Devices = Mapping[str, WindowSet | RoundStream]


def fleet_of(
    devices: Devices, roles: Mapping[str, Role], profiles: Mapping[str, Profile]
) -> list[VirtualDevice]:
    """The devices by name.

    Raises:
        Misconfigured: there is none, or a role or profile is that of none.
    """
    if not devices:
        raise Misconfigured("a simulation needs at least one device")
    for what, named in (("roles", roles), ("profiles", profiles)):
        if stray := sorted(set(named) - set(devices)):
            raise Misconfigured(
                f"{what}: there is no device {stray[0]!r} (there are {', '.join(sorted(devices))})"
            )
    return [
        VirtualDevice(
            name,
            Fixed(windows) if isinstance(windows, WindowSet) else windows,
            number,
            role=roles.get(name, "train"),
            may=profiles.get(name),
        )
        for number, (name, windows) in enumerate(sorted(devices.items()))
    ]


def site_of(task: Task, seed: int, fleet: list[VirtualDevice], at_once: int) -> Site:
    """A site, with the encoders' graphs if a device needs them."""
    if not any(device.role == PROTOTYPE for device in fleet):
        return Site(task, seed, at_once=at_once)
    registry.method(task.method).prototyper()  # raises first if the method has none
    from export.encoder_models import make_encoder_models  # noqa: PLC0415 - an optional part, and slow to import

    return Site(task, seed, make_encoder_models(task), at_once=at_once)


def choice_of(task: Task, seed: int, fleet: list[VirtualDevice]) -> Choice | None:
    """Who takes part in a round; None if all devices do in every round."""
    wanted = task.rounds.devices_per_round
    sampled = task.privacy is not None and task.privacy.rate is not None
    if not sampled and (wanted is None or wanted >= len(fleet)):
        return None
    trainers = [device.name for device in fleet if device.role != PROTOTYPE]
    return Choice(task, [device.name for device in fleet], trainers, seed)


def crew_of(site: Site, fleet: list[VirtualDevice], workers: int | None, ray: str) -> Crew:
    """The processes of the devices."""
    if ray:
        return RayWorkers(site, fleet, ray, workers)
    return LocalWorker(site, fleet) if workers in {None, 1} else Workers(site, fleet, workers or 1)
