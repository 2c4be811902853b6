"""Side job: scores of each device's bundle on unseen people, and of the device trained alone.

It runs beside the fleet because it trains. Both are judged by the same function on the same windows,
with the sensors that the device has.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lichen_lab.demo.core.side_jobs import main
from lichen_lab.simulation.data.streams import masked
from models.contract import Blobs, ClientContext, FloatArray, Profile, Tensors, WindowSet
from models.data import window_set
from models.data.window_set import target as truth_of
from models.methods.disentafl.routing import blob_names
from models.registry import method
from models.tensors import flatten, unflatten
from protocol.output_names import output_names, outputs
from protocol.tasks.task import Target, Task

_BATCH = 256
_STORE_BYTES = 256 * 1024 * 1024
Outputs = Mapping[str, FloatArray]


def stored_windows(folder: Path, task: Task, profile: Profile, limit: int) -> WindowSet:
    """The newest windows in an agent's store that it could learn from; the agent must not run."""
    from edge_agent.windows.observed_profile import is_useful, restrict_to_profile  # noqa: PLC0415 - as above
    from edge_agent.windows.store import WindowStore  # noqa: PLC0415 - as above

    store = WindowStore(folder, task, _STORE_BYTES)
    try:
        return restrict_to_profile(task, profile, store.recent(limit, wanted=is_useful(task, profile)))
    finally:
        store.close()


def restrict_sensors(task: Task, windows: WindowSet, modalities: Sequence[str]) -> WindowSet:
    """The windows as a device with these sensors sees them."""
    return masked(windows, np.array([name in modalities for name in task.modality_names]))


def scores(targets: Sequence[Target], made: Outputs, windows: WindowSet) -> dict[str, float]:
    """By target the share of right windows, or r2; a target without labels has no score."""
    found = {}
    for target in targets:
        true_B = truth_of(windows, target.name)
        known_B = ~np.isnan(true_B)
        if not known_B.any():
            continue
        guess, true = (
            made[output_names(target)[0]][known_B].astype(np.float64),
            true_B[known_B].astype(np.float64),
        )
        if target.labels:
            found[target.name] = float((guess.argmax(axis=1) == true).mean())
        else:
            spread = np.square(true - true.mean()).sum()
            found[target.name] = float(1 - np.square(guess - true).sum() / max(spread, 1e-12))
    return found


def bundle(folder: Path, task: Task, windows: WindowSet) -> dict[str, float]:
    """Run an unpacked bundle over the windows, as the device does but without its own last layers."""
    from edge_agent.inference.onnx_models.compatibility import PRESENT  # noqa: PLC0415 - only in the child
    from edge_agent.inference.onnx_models.session import open_session  # noqa: PLC0415 - as above
    from edge_agent.inference.onnx_models.window_model import read_manifest  # noqa: PLC0415 - as above

    manifest = read_manifest(folder)
    reads = [m.name for m in manifest.modalities]
    predicts = manifest.targets or task.objectives[:1]
    own = restrict_sensors(task, windows, reads)
    columns = [task.modality_names.index(name) for name in reads]
    session = open_session(folder, manifest, 1)
    parts = []
    for at in range(0, len(own), _BATCH):
        rows = slice(at, at + _BATCH)
        fed = {PRESENT: own.present_BM[rows][:, columns].astype(np.float32)}
        parts.append(session.run(list(outputs(predicts)), fed | {name: own.x[name][rows] for name in reads}))
    made = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    return scores(predicts, dict(zip(outputs(predicts), made, strict=True)), own)


def by_itself(
    task: Task, profile: Profile, windows: WindowSet, test: WindowSet, seed: int
) -> dict[str, float]:
    """Train for as many rounds without a fleet: one domain, and the last layer shared."""
    import torch  # noqa: PLC0415 - only in the child

    from models.methods.disentafl.client import make_client  # noqa: PLC0415 - as above

    alone = task.model_copy(update={"config": {**task.config, "domains": 1, "last_layer": "shared"}})
    client = make_client()
    whole = client.initial(alone, seed)
    state: Blobs = {name: whole[name] for name in blob_names.route(alone, profile, (0,))}
    kept: Tensors = {}
    for number in range(1, task.rounds.count + 1):
        result = client.train(ClientContext(alone, "alone", number, seed, profile), windows, state, kept)
        kept = result.private  # Adam's moments, as in the fleet
        flat = flatten(state)
        state = unflatten({name: value + result.tensors.get(name, 0) for name, value in flat.items()})
    model = client.inference_model(alone, state)
    own = restrict_sensors(task, test, model.modalities)
    columns = [task.modality_names.index(name) for name in model.modalities]
    present_BM = torch.from_numpy(own.present_BM[:, columns].astype(np.float32))
    with torch.inference_mode():
        made = model(present_BM, *(torch.from_numpy(own.x[name]) for name in model.modalities))
    named = dict(zip(outputs(model.targets), (one.numpy() for one in made), strict=True))
    return scores(model.targets, named, own)


def supernet_up(task: Task, windows: WindowSet) -> int:
    """Bytes of the update of a device that holds the whole supernet of one domain."""
    from lichen_lab.simulation.data.streams import Fixed  # noqa: PLC0415 - as above
    from lichen_lab.simulation.training.runner import VirtualDevice  # noqa: PLC0415 - only in the child

    client = method(task.method).client()
    whole = client.initial(task, 0)
    profile = Profile(task.input_names, task.target_names)
    state = {name: whole[name] for name in blob_names.route(task, profile, (0,))}
    frame, _ = VirtualDevice("all", Fixed(windows)).update(
        ClientContext(task, "all", 1, 0, profile), client, state, "0" * 64
    )
    return len(frame)


def results(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One line a result; the sizes first."""
    task = Task.model_validate(job["task"])
    test = window_set.load(Path(job["unseen"]), task)
    yield {"supernet_up": supernet_up(task, window_set.select(test, np.arange(len(test)) < _BATCH))}
    for name, folder in job["bundles"].items():
        yield {"device": name, "scores": bundle(Path(folder), task, test)}
    for name, device in job["alone"].items():
        profile = Profile(tuple(device["modalities"]), tuple(device["targets"]))
        windows = stored_windows(Path(device["store"]), task, profile, int(job["max_windows"]))
        yield {"device": name, "alone": by_itself(task, profile, windows, test, int(job["seed"]))}


if __name__ == "__main__":
    main(results)
