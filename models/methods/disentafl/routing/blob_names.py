"""Names of the knowledge types' blobs, and which of them are on a device's route (IoGate). Pure; NumPy-free.

==========================  ==================================================  =============================
``base/<m>``                embedding and attention of modality m               domain-agnostic
``domain/<m>.<d>``          MoDE's experts of domain d, in all layers           one d on a route (DomGate)
``expert/<m>.<o>``          MoTE's expert (m, o) and MoME's (o, m)              m, o may be :data:`SHARED`
``decoder/<o>``             the layers of target o's decoder but the last
``last/<o>``                the last layer                                      private: stays as it began
``gate/<m>``                the domain gate's network on modality m
``features/<m>.<o>``        mean features by class                              with ``aggregate = "kd"``
==========================  ==================================================  =============================
"""

from collections.abc import Iterable
from itertools import product

from models.contract import Profile
from models.methods.disentafl import METHOD, SHARED, DisentAflConfig
from protocol.tasks.task import Task


def config_of(task: Task) -> DisentAflConfig:
    """The task's options, checked; raises Misconfigured."""
    return METHOD.configure(task)


def gated(config: DisentAflConfig) -> bool:
    """Whether there is a choice of domains to make."""
    return "mode" in config.families and config.domains > 1


def pairs(profile: Profile) -> tuple[tuple[str, str], ...]:
    """The ones of IoGate's matrix S_i: (modality or shared, target or shared)."""
    return tuple(product((*profile.modalities, SHARED), (*profile.targets, SHARED)))


def parts(config: DisentAflConfig, modality: str, target: str) -> tuple[str, ...]:
    """What ``expert/<modality>.<target>`` holds: ``mote``, ``mome``, both; nothing: there is no such blob.

    Without a family of experts, one of them serves all: MoTE's ``(modality, shared)``, MoME's
    ``(shared, target)``.
    """
    own = {
        "mote": "mote" in config.families or target == SHARED,
        "mome": "mome" in config.families or modality == SHARED,
    }
    return tuple(part for part, there in own.items() if there)


def known(task: Task, profile: Profile) -> Profile:
    """What of a profile the task has and reads, in the task's order."""
    return Profile(
        tuple(m for m in task.input_names if m in profile.modalities),
        tuple(o for o in task.target_names if o in profile.targets),
    )


def first(task: Task, profile: Profile) -> tuple[str, ...]:
    """What the domain gate needs, sorted."""
    own = known(task, profile)
    return tuple(sorted(f"gate/{m}" for m in own.modalities)) if gated(config_of(task)) else ()


def route(task: Task, profile: Profile, domains: Iterable[int] | None = None) -> tuple[str, ...]:
    """The blobs on a device's route, sorted.

    Args:
        task: names and options.
        profile: the device's; what the task does not have (or does not read) is left out.
        domains: those to take; None takes all that the device may choose from.
    """
    config = config_of(task)
    own = known(task, profile)
    chosen = range(config.domains) if domains is None else domains
    names = [
        *first(task, own),
        *(f"base/{m}" for m in own.modalities),
        *(f"domain/{m}.{d}" for m in own.modalities for d in chosen if "mode" in config.families),
        *(f"expert/{m}.{o}" for m, o in pairs(own) if parts(config, m, o)),
        *(f"decoder/{o}" for o in own.targets),
        *(f"last/{o}" for o in own.targets),
    ]
    if config.aggregate == "kd":
        names += [f"features/{m}.{o}" for m, o in pairs(own) if "mote" in parts(config, m, o)]
    return tuple(sorted(names))


def profile_of(task: Task, names: Iterable[str]) -> Profile:
    """Whose route these blobs are: what is read and predicted, by ``base`` and ``decoder``."""
    have = set(names)
    return Profile(
        tuple(m for m in task.input_names if f"base/{m}" in have),
        tuple(o for o in task.target_names if f"decoder/{o}" in have),
    )


def domains_of(names: Iterable[str]) -> tuple[int, ...]:
    """The domains that these blobs hold experts of, sorted: one on a device's route."""
    found = {int(name.rpartition(".")[2]) for name in names if name.startswith("domain/")}
    return tuple(sorted(found))
