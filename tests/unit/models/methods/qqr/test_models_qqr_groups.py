"""QQR's training of several devices at once: the results of each alone, nearly to the bit."""

from dataclasses import replace

import numpy as np
import pytest

from models.contract import ClientContext, LocalResult, WindowSet
from models.methods.qqr.client import QqrClient, make_client
from models.training.group_client import GroupMember
from protocol.errors import Transient
from protocol.tasks.kinds import Augment
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Task
from tests.support.methods.qqr_cases import task, windows, with_prototypes, without


def devices(count: int = 4) -> list[WindowSet]:
    rng = np.random.default_rng(5)
    base = windows()
    return [
        replace(base, x={name: x + rng.normal(size=x.shape).astype(np.float32) for name, x in base.x.items()})
        for _ in range(count)
    ]


def members(its: Task, sets: list[WindowSet]) -> list[GroupMember]:
    return [GroupMember(ClientContext(its, f"d{i}", 2, 10 + i), one, {}) for i, one in enumerate(sets)]


def alone(client: QqrClient, its: Task, sets: list[WindowSet]) -> list[LocalResult]:
    state = with_prototypes(its)
    return [client.train(one.context, one.windows, state, {}) for one in members(its, sets)]


def at_once(client: QqrClient, its: Task, sets: list[WindowSet]) -> list[LocalResult | None]:
    return client.train_group(members(its, sets), with_prototypes(its))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"epochs": 3, "batch": 5, "momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.5},
        {"rotate_deg": 20.0, "gain": 0.2, "batch": 6},
        {"class_weights": {"a": 2.0, "c": 0.0}, "balanced_batches": True, "batch": 6},
        {"remeasure_norms": False, "normalise": False},
        {"personal": "both", "prototype_bits": 32, "pce_on_incomplete": True},
        {"impute": "zero_input", "epochs": 2},
    ],
    ids=lambda config: ", ".join(config) or "defaults",
)
def test_qqr_devices_at_once_learn_what_each_learns_alone(config: dict[str, object]) -> None:
    compare(task(**config))


def test_qqr_devices_at_once_change_their_windows_as_each_alone() -> None:
    its = task(batch=5)
    changed = [one.model_copy(update={"augment": Augment(shift=0.2, noise=0.5)}) for one in its.modalities]
    compare(its.model_copy(update={"modalities": tuple(changed)}))


def compare(its: Task) -> None:
    client, sets = make_client(), devices()
    together = at_once(client, its, sets)
    for one, other in zip(alone(client, its, sets), together, strict=True):
        assert other is not None
        assert (one.codecs, one.weight, one.extra) == (other.codecs, other.weight, other.extra)
        assert other.metrics == pytest.approx(one.metrics, rel=1e-5)
        for mine, theirs in ((one.tensors, other.tensors), (one.private, other.private)):
            assert mine.keys() == theirs.keys()
            for name, tensor in mine.items():
                np.testing.assert_allclose(theirs[name], tensor, rtol=1e-4, atol=2e-6, err_msg=name)


def test_qqr_a_group_gives_the_same_bytes_again() -> None:
    found = [at_once(make_client(), task(), devices()) for _ in range(2)]
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        assert all(one.tensors[name].tobytes() == other.tensors[name].tobytes() for name in one.tensors)


def test_qqr_devices_that_do_not_fit_are_left_to_train_alone() -> None:
    whole = devices(6)
    sets = [
        whole[0],
        without(whole[1], 1, slice(0, 2)),
        replace(whole[2], quality_BM=np.full((12, 2), 0.1, np.float32)),
        replace(whole[3], y_B=np.full(12, -1)),
        whole[4],
        replace(whole[5], y_B=np.where(np.arange(12) < 3, -1, whole[5].y_B)),
    ]
    client = make_client()
    made = at_once(client, task(), sets)
    assert [result is not None for result in made] == [True, False, False, False, True, False]
    with pytest.raises(Transient, match="no labelled windows"):
        alone(client, task(), sets[3:4])
    assert at_once(client, task(), sets[:1]) == [None]  # nobody to train with: the bytes of a device alone


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"upload": "prototypes"}, "config.upload"),
        ({"model_every": 3}, "config.model_every = 3"),
        ({"modality_dropout": 0.2}, "config.modality_dropout = 0.2"),
    ],
)
def test_qqr_options_that_need_devices_alone_are_named(config: dict[str, object], words: str) -> None:
    assert words in make_client().group_trouble(task(**config))


def test_qqr_an_encoder_that_needs_devices_alone_is_named() -> None:
    lstm = {"acc": Encoder(width=4, depth=1), "gyro": Encoder(kind="lstm", width=4, depth=1)}
    its = task().model_copy(update={"network": Network(encoders=lstm, feature_dim=4, hidden_dim=4)})
    assert "modality 'gyro'" in make_client().group_trouble(its)
    assert not make_client().group_trouble(task())
