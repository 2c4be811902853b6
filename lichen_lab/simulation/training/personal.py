"""The gain from a device's private tensors: its own model against the global one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from edge_agent.windows.observed_profile import restrict_to_profile, training_windows
from lichen_lab.simulation.data.streams import rng_of
from lichen_lab.simulation.training.crew.parts import Devices
from lichen_lab.simulation.training.evaluation.scores import scored
from lichen_lab.simulation.training.runner import History
from models import registry
from models.contract import Blobs, Client, Evaluation, Profile, RoutedServer, WindowSet
from models.data.window_set import select
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL, Task

_PURPOSE = 103


@dataclass(frozen=True)
class PersonalModels:
    """Scores of one device on windows in its own class shares.

    Attributes:
        common: of the global model; None if the fleet shares none that could be evaluated.
        own: of the device's model.
    """

    common: Evaluation | None
    own: Evaluation


def each_personal(
    task: Task,
    history: History,
    devices: Devices,
    test: WindowSet,
    seed: int,
    *,
    profiles: Mapping[str, Profile] | None = None,
) -> dict[str, PersonalModels]:
    """Evaluate every device's own model.

    Args:
        task: what was learned.
        history: with the devices' private tensors (``keep_private``).
        devices: as simulated; their windows of the last round give a device's class shares.
        test: labelled windows that no device has seen.
        seed: of the draw of a device's test windows.
        profiles: as simulated.

    Raises:
        Misconfigured: the devices have no private tensors, or cannot be evaluated on these windows.
    """
    spec = registry.method(task.method)
    client = spec.client()
    if not any(history.private.values()) and not spec.routed:
        raise Misconfigured(
            f"no device of task {task.name!r} has private tensors: the method's options choose them"
        )
    last, models = len(history.rounds), {}
    for number, name in enumerate(sorted(devices)):
        given = devices[name]
        held = given if isinstance(given, WindowSet) else given.at(last)
        rng, state = rng_of(seed, _PURPOSE, number), history.state
        if spec.routed:
            profile, held = training_windows(task, (profiles or {}).get(name), held)
            route = cast("RoutedServer", spec.server()).serving_route(task, profile, history.extra.get(name))
            state = {blob: history.state[blob] for blob in route}
            own_test = _of_profile(task, profile, test, held, rng)
        else:
            own_test = in_shares_of(test, held, rng)
        own = client.inference_model(task, spec.blended(task, state, history.private.get(name, {})))
        models[name] = PersonalModels(
            _common(task, client, own_test, history.state), scored(task, own, own_test)
        )
    return models


def _common(task: Task, client: Client, test: WindowSet, state: Blobs) -> Evaluation | None:
    try:
        return client.evaluate(task, test, state)
    except Misconfigured:  # each device has a part of the model that no other has
        return None


def _of_profile(
    task: Task, profile: Profile, test: WindowSet, held: WindowSet, rng: np.random.Generator
) -> WindowSet:
    """Test windows as the device would see them: in its class shares, if it knows classes of ``label``."""
    columns = [task.modality_names.index(name) for name in profile.modalities]
    own = select(test, test.present_BM[:, columns].any(axis=1))
    if not len(own):
        raise Misconfigured(f"no test window has {' or '.join(profile.modalities)}: nothing to evaluate on")
    own = restrict_to_profile(task, profile, own)
    return in_shares_of(own, held, rng) if LABEL in profile.targets else own


def in_shares_of(test: WindowSet, held: WindowSet, rng: np.random.Generator) -> WindowSet:
    """As many test windows as possible in the class shares of a device's windows.

    Raises:
        Misconfigured: none of the device's classes is among the test windows.
    """
    classes = 1 + max(int(test.y_B.max(initial=-1)), int(held.y_B.max(initial=-1)))
    there_K = np.bincount(test.y_B[test.y_B >= 0], minlength=classes)
    share_K = np.bincount(held.y_B[held.y_B >= 0], minlength=classes) * (there_K > 0)
    if not share_K.any():
        raise Misconfigured("a device has no class of the test windows: it cannot be evaluated on them")
    met_K = share_K > 0
    most = (there_K[met_K] / share_K[met_K]).min()
    wanted_K = np.floor(share_K * most).astype(np.int64)
    parts = [
        rng.permutation(np.flatnonzero(test.y_B == c))[: max(1, wanted_K[c])] for c in np.flatnonzero(met_K)
    ]
    return select(test, np.sort(np.concatenate(parts)))
