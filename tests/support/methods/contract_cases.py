"""A small task of two modalities for any method, its material, and a device's results from it."""

from dataclasses import replace
from typing import cast

import numpy as np
from pydantic import JsonValue

from models.contract import Blobs, ClientContext, LocalResult, Profile, Update, WindowSet
from models.data import window_set
from models.guided import DeviceWeights, GuidedServer
from models.materials import Material
from models.registry import method
from models.spec import MethodSpec
from models.tensors import flatten
from protocol.frames.frame import decode_frame, encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window
from tests.support import kinds
from tests.support.methods import contract_graphs
from tests.support.own_package import permitted_example, with_own
from tests.support.tasks import update_header

OPTIONS: dict[str, dict[str, dict[str, JsonValue]]] = {
    "qqr": {"incomplete windows": {"impute": "pnr_posterior", "pce_on_incomplete": True}},
    "fedavg": {"strict norms": {"private_norms": "strict"}},
    "disentafl": {
        "kd": {"aggregate": "kd", "epochs": 3},
        "private last layer": {"last_layer": "private"},
        "without experts": {"families": []},
    },
    "tactfl": {
        "ends, classes": {
            "segments": "ends",
            "segment_share": 0.75,
            "optimizer": "sgd",
            "lr": 0.05,
            "summary": "classes",
            "rule": "clamp",
            "finetune_epochs": 2,
        }
    },
    "mmfed3_hide": {
        "one copy, half the rows": {
            "dual": False,
            "fusion": "weighted",
            "imputer": "ae",
            "prox": 0.01,
            "rows_share": 0.5,
        }
    },
}
"""By method, options of the suite's fleets besides the method's defaults."""
LONG_OPTIONS: dict[str, dict[str, dict[str, JsonValue]]] = {
    "fedavg": {
        "equal, proximal": {"weigh_by": "equal", "proximal": 0.1},
        "norms with mean": {"private_norms": "with_mean"},
    }
}
"""The same for the long tests."""
PACKAGED = {"qqr": "encoders of a package"}
"""By method, the fleet whose encoders are the example's (``examples/own_network``)."""
KIND_FLEETS: dict[str, dict[str, tuple[str, str]]] = {
    "qqr": {"image, sound": ("image", "sound")},
    "disentafl": {"image, text": ("image", "text")},
    "tactfl": {"stream, sound": ("stream", "sound")},
}
"""By method, fleets of other kinds of modalities (``tests.support.kinds``)."""
LONG_KIND_FLEETS: dict[str, dict[str, tuple[str, str]]] = {
    method: {
        f"{first}, {second}": (first, second)
        for first, second in (
            ("sound", "vector"),
            ("vector", "text"),
            ("text", "stream"),
            ("stream", "image"),
        )
    }
    for method in ("qqr", "disentafl", "fedavg")
} | {"tactfl": {"sound, stream": ("sound", "stream")}}
"""The same for the long tests: with those above, each kind first and second."""
UNJUDGED = {
    ("fedavg", "strict norms"): "the coordinator has no norms to evaluate with",
    ("disentafl", "kd"): "devices share no weights: the coordinator has nothing to evaluate",
    ("disentafl", "private last layer"): "the coordinator has no last layer to evaluate with",
    ("disentafl", "without experts"): "an ablation: whether it learns as well is for the study",
    ("mmfed3_hide", "defaults"): "the coordinator has no graph to ask",
    ("mmfed3_hide", "one copy, half the rows"): "the coordinator has no graph to ask",
}
"""Why the global state is not evaluated; devices are, in the suites of routed methods and of owned parts."""
OPTIONAL: dict[str, tuple[str, ...]] = {"mmfed3_hide": ("keys/new", "projection/")}
"""Tensors that an update may lack: new entities, and modalities that no entity has."""


def task_of(spec: MethodSpec, options: str = "defaults") -> Task:
    """Material of the kind that the method learns from."""
    config = (OPTIONS.get(spec.name, {}) | LONG_OPTIONS.get(spec.name, {})).get(options, {})
    if spec.material == "graph":
        return contract_graphs.task_of(spec, config)
    of_kinds = KIND_FLEETS.get(spec.name, {}) | LONG_KIND_FLEETS.get(spec.name, {})
    if options in of_kinds:
        return kinds.task_of_kinds(of_kinds[options], spec.name)
    packaged = options == PACKAGED.get(spec.name)
    small = Encoder(kind="cnn1d", width=8 if packaged else 4, depth=2)
    task = Task(
        name="contract",
        method=spec.name,
        labels=("rest", "slow", "fast"),
        modalities=(
            Modality(name="accelerometer", channels=3, rate_hz=32, unit="g"),
            Modality(name="microphone", channels=2, rate_hz=64, unit="Pa"),
        ),
        window=Window(length_s=1, stride_s=0.5),
        network=Network(encoders={"accelerometer": small, "microphone": small}, feature_dim=8, hidden_dim=8),
        config=config,
    )
    return with_own(task, permitted_example(), kernel=9) if packaged else task


def material_of(task: Task, seed: int, missing: float = 0.0) -> Material:
    """Something to learn from; ``missing``: the share that lacks the second modality."""
    if task.graph is None:
        return windows_of(task, seed, missing=missing)
    return contract_graphs.graph_of(task, seed, missing)


def nothing(task: Task) -> Material:
    """The same without content."""
    return window_set.empty(task) if task.graph is None else contract_graphs.empty(task)


def windows_of(task: Task, seed: int, count: int = 24, missing: float = 0.0) -> WindowSet:
    """Sines with a frequency per class: learnable from either modality; of other kinds, as of ``kinds``."""
    if any(modality.kind != "stream" for modality in task.modalities):
        return kinds.windows_of(task, seed, count, missing)
    rng = np.random.default_rng(seed)
    y_B = np.arange(count) % len(task.labels)
    present_BM = np.ones((count, 2), np.bool_)
    present_BM[:, 1] = rng.random(count) >= missing
    x = {}
    for m, modality in enumerate(task.modalities):
        t_T = np.arange(task.samples(modality.name)) / modality.rate_hz
        phase_BC1 = rng.uniform(0, 2 * np.pi, (count, modality.channels, 1))
        wave_BCT = np.sin(2 * np.pi * 4 * y_B[:, None, None] * t_T + phase_BC1)
        noisy_BCT = wave_BCT + rng.normal(0, 0.1, wave_BCT.shape)
        x[modality.name] = (noisy_BCT * present_BM[:, m, None, None]).astype(np.float32)
    return WindowSet(x, present_BM, np.ones((count, 2), np.float32), y_B.astype(np.int64))


def context(task: Task, device: str = "d0", round_: int = 1) -> ClientContext:
    return ClientContext(task=task, device=device, round=round_, seed=5)


def header_of(
    task: Task, device: str, material: Material, result: LocalResult, round_: int = 1
) -> UpdateHeader:
    told = method(task.method).kind.told(material, task, task.modality_names)
    return update_header(
        task,
        device,
        round=round_,
        weight=result.weight,
        samples=told.samples,
        counts=dict(told.counts),
        missing=dict(told.missing),
        quality=dict(told.quality),
        metrics=result.metrics,
        extra=result.extra,
    )


def frame_of(task: Task, device: str, material: Material, result: LocalResult) -> bytes:
    encoded = {
        name: encode(tensor, result.codecs.get(name, Codec(task.uplink.codec)))
        for name, tensor in result.tensors.items()
    }
    return encode_frame(header_of(task, device, material, result), encoded)


def received(frame: bytes) -> Update:
    return Update(*decode_frame(frame, UpdateHeader))


def learnt(spec: MethodSpec, task: Task, state: Blobs, device: str, material: Material) -> Update:
    result = spec.client().train(context(task, device), material, served(spec, state, device), {})
    return received(frame_of(task, device, material, result))


def served(spec: MethodSpec, state: Blobs, device: str) -> Blobs:
    """A state without the parts of other devices."""
    own = {f"{part}/{device}" for part in spec.owned}
    return {name: x for name, x in state.items() if name in own or not is_owned(spec, name)}


def is_owned(spec: MethodSpec, blob: str) -> bool:
    """Whether a blob of a state belongs to one device."""
    return blob.split("/", 1)[0] in spec.owned


def on_route(spec: MethodSpec, task: Task, state: Blobs, device: str = "d4") -> Blobs:
    """What a device with the first modality alone fetches."""
    route = {*spec.server().route(task, Profile(task.modality_names[:1]))}
    return {
        name: x for name, x in served(spec, state, device).items() if name in route or is_owned(spec, name)
    }


def begun(spec: MethodSpec, task: Task) -> Blobs:
    """The state to learn from: the initial one; if devices own parts, the one after a round of three."""
    state = spec.client().initial(task, seed=3)
    if not spec.owned:
        return state
    updates = [learnt(spec, task, state, f"d{i}", material_of(task, i)) for i in range(3)]
    return next_state(spec, task, 1, state, updates)


def only_with(spec: MethodSpec, task: Task, modality: str) -> frozenset[str]:
    """The blobs on a device's route that only this modality needs."""
    server = spec.server()
    others = tuple(name for name in task.modality_names if name != modality)
    found = set(server.route(task, Profile((modality,)))) - set(server.route(task, Profile(others)))
    assert found
    return frozenset(found)


def deaf(windows: WindowSet) -> WindowSet:
    """Without the second modality."""
    second = [*windows.x][1]
    x = windows.x | {second: np.zeros_like(windows.x[second])}
    return replace(windows, x=x, present_BM=windows.present_BM & np.array([True, False]))


def without_second(material: Material) -> Material:
    """The same, but the second modality never existed."""
    if isinstance(material, WindowSet):
        return deaf(material)
    first, second = material.features
    features = {first: material.features[first], second: np.zeros_like(material.features[second])}
    return replace(material, features=features, present_EM=material.present_EM & np.array([True, False]))


def labelled_of(task: Task) -> WindowSet:
    """The data of a guided method's coordinator."""
    return windows_of(task, seed=77, count=60, missing=0.2)


def weighed(spec: MethodSpec, task: Task, state: Blobs, updates: list[Update]) -> DeviceWeights:
    """The coordinator's weights of devices, from one update after the other."""
    trainer, labelled = spec.trainer(), labelled_of(task)
    views = {u.header.device: trainer.view(task, labelled, state, u) for u in updates}
    return guided(spec).weigh(task, views)


def guided(spec: MethodSpec) -> GuidedServer:
    return cast("GuidedServer", spec.server())


def next_state(spec: MethodSpec, task: Task, round_: int, state: Blobs, updates: list[Update]) -> Blobs:
    """The coordinator's fold of a round's updates."""
    if not spec.guided:
        fold = spec.server().open(task, round_, state)
    else:
        fold = guided(spec).open_guided(task, round_, state, weighed(spec, task, state, updates))
    for update in updates:
        fold.fold(update)
    made = fold.close()
    if spec.guided:
        made, _ = spec.trainer().finish(task, round_, 5, labelled_of(task), made)
    return made


def folded(spec: MethodSpec, task: Task, state: Blobs, updates: list[Update]) -> dict[str, bytes]:
    fold = spec.server().open(task, 1, state)
    for update in updates:
        fold.fold(update)
    return as_bytes(fold.close())


def as_bytes(state: Blobs) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in flatten(state).items()}
