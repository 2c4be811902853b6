"""Weights of classes, balanced batches and housings: what they do, and which names are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.contract import WindowSet
from models.registry import method
from models.tensors import apply, flatten, unflatten
from models.training import local
from models.training.supervised import cross_entropy
from models.training.training_choices import axes_of, housings_of, weight_of_each
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality, Task
from tests.support.methods.qqr_cases import task, train, windows
from tests.support.tasks import small_task

LABELS = ("a", "b", "c")


def test_balanced_weights_give_each_class_that_occurs_the_same_sum():
    counts = [6, 0, 2]
    weights = weight_of_each("balanced", LABELS, counts)
    assert weights is not None
    assert [w * n for w, n in zip(weights, counts, strict=True)] == [4, 0, 4]
    assert weight_of_each("none", LABELS, counts) is None
    assert weight_of_each({"b": 3.0}, LABELS, counts) == [1, 3, 1]
    assert weight_of_each({}, LABELS, counts) is None


def test_a_weight_changes_the_loss_as_copies_of_the_window_would():
    logits_BK, y_B = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2])
    thrice = torch.tensor([0, 1, 1, 1, 2])
    weighted = cross_entropy(logits_BK, y_B, torch.tensor([1.0, 3, 1]))
    torch.testing.assert_close(weighted, cross_entropy(logits_BK[thrice], y_B[thrice]))
    none = cross_entropy(logits_BK, y_B, torch.zeros(3))
    assert none.item() == 0, "no window counts: no step, and no NaN"


def test_balanced_batches_have_equal_shares_of_the_classes_that_are_there():
    y_N = torch.tensor([0] * 950 + [2] * 50)
    drawn = [*local.balanced_batches(y_N, 128, torch.Generator().manual_seed(0))]
    assert [len(one) for one in drawn] == [125] * 8
    share = y_N[torch.cat(drawn)].eq(2).float().mean()
    assert 0.45 < share < 0.55
    again = torch.cat([*local.balanced_batches(y_N, 128, torch.Generator().manual_seed(0))])
    assert torch.equal(torch.cat(drawn), again)
    assert [*local.balanced_batches(y_N[:0], 128, torch.Generator())] == []


def test_each_housing_turns_by_itself_and_what_is_in_none_stays():
    x_BCT = torch.randn(5, 3, 10, generator=torch.Generator().manual_seed(0))
    x = {name: x_BCT.clone() for name in ("acc", "gyro", "watch", "loose")}
    turned = local.augmented(x, 60, 0, [("acc", "gyro"), ("watch",)], torch.Generator().manual_seed(1))
    assert torch.equal(turned["acc"], turned["gyro"])
    assert not torch.allclose(turned["watch"], turned["acc"])
    torch.testing.assert_close(turned["watch"].norm(dim=1), x_BCT.norm(dim=1))
    assert torch.equal(turned["loose"], x_BCT)


def test_colours_are_no_axes():
    camera = Modality(name="camera", kind="image", channels=3, height=8, width=8, rate_hz=1)
    acc = Modality(name="acc", channels=3, rate_hz=10)
    both = small_task((camera, acc))
    assert axes_of(both) == ("acc",)
    assert housings_of(both, ()) == (("acc",),)


def imbalanced() -> WindowSet:
    """Nine of ten windows are of one class; the rare one is shifted by less than the noise."""
    some, y_B = windows(200), (np.arange(200) % 10 == 0).astype(np.int64)
    x = {
        name: x_BCT + np.float32(0.25) * y_B[:, None, None].astype(np.float32)
        for name, x_BCT in some.x.items()
    }
    return replace(some, x=x, y_B=y_B)


@pytest.mark.parametrize("options", [{"class_weights": "balanced"}, {"balanced_batches": True}], ids=str)
def test_more_of_a_rare_class_is_found(options: dict[str, object]):
    some, client = imbalanced(), method("qqr").client()

    def recall(**chosen: object) -> float:
        t = task(epochs=10, batch=32, novel_classes=False, **chosen)
        state = client.initial(t, 0)
        base, sent = flatten(state), train(t, some, state).tensors
        moved = apply(
            base, {name: delta for name, delta in sent.items() if name.startswith(("encoder", "head"))}
        )
        confusion_KK = client.evaluate(t, some, unflatten(moved)).confusion_KK
        return confusion_KK[1][1] / sum(confusion_KK[1])

    assert recall(**options) > recall() + 0.2


def test_without_them_training_is_bit_for_bit_as_before():
    plain = train(task(), windows(60))
    same = train(task(class_weights="none", balanced_batches=False, housings=[]), windows(60))
    for name, tensor in flatten({"": plain.tensors}).items():
        np.testing.assert_array_equal(tensor, flatten({"": same.tensors})[name])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("qqr", {"class_weights": {"walkin": 2.0}}, "config.class_weights: 'walkin' is none of"),
        ("qqr", {"class_weights": "equal"}, "config.class_weights"),
        (
            "qqr",
            {"housings": [["accc"]]},
            "'accc' is none of acc, gyro; did you mean 'acc'?",
        ),
        ("qqr", {"housings": [["acc"], ["acc"]]}, "config.housings: 'acc' is in two of them"),
        ("qqr", {"class_wieghts": "balanced"}, "did you mean 'class_weights'?"),
        ("tactfl", {"housings": [["mic"]]}, "config.housings: 'mic' is none of acc, gyro"),
        ("tactfl", {"class_weights": "balanced"}, "config.class_weights: no such option"),
        ("disentafl", {"housings": [["acc"]]}, "config.housings: no such option"),
    ],
)
def test_wrong_names_are_refused_with_those_that_there_are(name: str, options: dict[str, object], words: str):
    acc, gyro = (Modality(name=one, channels=3, rate_hz=10) for one in ("acc", "gyro"))
    asked: Task = small_task((acc, gyro)).model_copy(update={"method": name, "config": options})
    with pytest.raises(Misconfigured) as refused:
        method(name).configure(asked)
    assert words in str(refused.value)
