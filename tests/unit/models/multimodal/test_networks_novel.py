"""Classes that the head was never trained on, told by their prototypes; and mean imputation at inference."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from export.onnx_graph import to_onnx
from export.parity.gate import check
from models.multimodal.inference import InferenceModel
from models.multimodal.network import MultimodalNetwork, build
from models.multimodal.prototypes import normalise, with_novel
from protocol.tasks.network import Encoder
from tests.support.tasks import sensors, small_network, small_task

D, K, NOVEL = 8, 4, 3
TASK = small_task(
    sensors(acc=(3, 10), gyro=(2, 10)),
    ("a", "b", "c", "new"),
    network=small_network(D, acc=Encoder(kind="cnn1d", width=4, depth=2), gyro=Encoder(kind="lstm", width=5)),
)
TRAINED = np.float32([3, 1, 2, 0])
MASKS = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
Tables = dict[str, tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def net() -> MultimodalNetwork:
    torch.manual_seed(5)
    return build(TASK).eval()


def windows(seed: int = 1, count: int = 4) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(count, m.channels, TASK.samples(m.name)) for m in TASK.modalities]


def tables(seen: dict[str, list[int]]) -> Tables:
    torch.manual_seed(7)
    rounds = {name: torch.tensor([float(c in classes) for c in range(K)]) for name, classes in seen.items()}
    return {name: (torch.randn(K, D), rounds_K) for name, rounds_K in rounds.items()}


def everywhere(classes: list[int]) -> Tables:
    return tables({"acc": classes, "gyro": classes})


def near(net: MultimodalNetwork, made: Tables, x: list[Tensor], length: float = 8.0) -> Tables:
    """The same tables with the novel class where the first window is, and the others opposite."""
    out = {}
    for (name, (_, rounds_K)), x_BCT in zip(made.items(), x, strict=True):
        with torch.no_grad():
            z_D = normalise(net.encode(name, x_BCT[:1]), length)[0]
        values_KD = -z_D.repeat(K, 1)
        values_KD[NOVEL] = z_D
        out[name] = (values_KD, rounds_K)
    return out


def ask(model: InferenceModel, mask: list[float], x: list[Tensor]) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        p_BK, logits_BK = model(torch.tensor([mask]).repeat(len(x[0]), 1), *x)
    return p_BK, logits_BK


@pytest.mark.parametrize("impute", ["prototype", "mean_feature", "zero_feature", "zero_input"])
@pytest.mark.parametrize(
    ("seen", "trained"),
    [
        ([0, 1, 2, 3], None),
        ([0, 1, 2, 3], np.ones(K, np.float32)),
        ([0, 1, 2], TRAINED),  # untrained, but without a prototype
        ([], np.zeros(K, np.float32)),  # a fresh fleet
    ],
    ids=["older state", "all trained", "no prototype of it", "fresh"],
)
def test_without_a_novel_class_nothing_changes_to_the_bit(net, impute, seen, trained) -> None:
    x = windows()
    model = InferenceModel(net, everywhere(seen), impute=impute, trained=trained)
    with torch.no_grad():
        p_BK, logits_BK = model(MASKS, *x)
        want_BK, want_logits_BK = InferenceModel(net, everywhere(seen), impute=impute)(MASKS, *x)
    assert torch.equal(p_BK, want_BK)
    assert torch.equal(logits_BK, want_logits_BK)
    assert torch.equal(p_BK, torch.softmax(logits_BK, dim=1))


@pytest.mark.parametrize("mask", [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
@pytest.mark.parametrize("impute", ["prototype", "mean_feature", "zero_feature", "zero_input"])
def test_a_window_near_a_novel_prototype_is_of_the_novel_class(net, impute, mask) -> None:
    x = windows()
    made = near(net, everywhere([0, 1, 2, 3]), x)
    for m, here in enumerate(mask):
        if not here:
            x[m] = torch.full_like(x[m], math.nan)
    told, logits_BK = ask(InferenceModel(net, made, impute=impute, trained=TRAINED), mask, x)
    untold, plain_BK = ask(InferenceModel(net, made, impute=impute), mask, x)
    assert told[0].argmax() == NOVEL
    assert told[0, NOVEL] > 0.9
    assert untold[0].argmax() != NOVEL  # else this shows nothing: the head would have said so
    assert torch.equal(logits_BK, plain_BK)
    assert torch.allclose(told.sum(dim=1), torch.ones(len(told)))


def test_a_window_near_a_trained_prototype_stays_the_heads(net) -> None:
    x = windows()
    made = near(net, everywhere([0, 1, 2, 3]), x)
    away = {name: (-values_KD, rounds_K) for name, (values_KD, rounds_K) in made.items()}
    told, logits_BK = ask(InferenceModel(net, away, trained=TRAINED), [1.0, 1.0], x)
    assert told[0, NOVEL] < 0.01
    assert torch.allclose(told[0, :NOVEL], torch.softmax(logits_BK[0, :NOVEL], dim=0), atol=0.01)


def test_a_prototype_in_the_modality_that_is_missing_tells_nothing(net) -> None:
    x = windows()
    made = near(net, tables({"acc": [0, 1, 2], "gyro": [0, 1, 2, 3]}), x)
    model = InferenceModel(net, made, trained=TRAINED)
    assert ask(model, [1.0, 0.0], x)[0][0, NOVEL] == 0
    assert ask(model, [0.0, 1.0], x)[0][0].argmax() == NOVEL


def test_with_nothing_trained_the_nearest_prototype_decides(net) -> None:
    x = windows()
    made = near(net, everywhere([0, 3]), x)
    p_BK, _ = ask(InferenceModel(net, made, trained=np.zeros(K, np.float32)), [1.0, 1.0], x)
    assert p_BK[0].argmax() == NOVEL
    assert torch.equal(p_BK[:, 1:3], torch.zeros(len(p_BK), 2))
    assert torch.allclose(p_BK.sum(dim=1), torch.ones(len(p_BK)))


def test_nothing_present_gives_equal_probabilities_with_a_novel_class_too(net) -> None:
    x = [x_BCT * math.nan for x_BCT in windows()]
    p_BK, logits_BK = ask(InferenceModel(net, everywhere([0, 3]), trained=TRAINED), [0.0, 0.0], x)
    assert torch.allclose(p_BK, torch.full_like(p_BK, 1 / K))
    assert torch.equal(logits_BK, torch.zeros_like(logits_BK))


def test_what_the_novel_classes_leave_is_shared_as_the_head_says() -> None:
    logits_BK = torch.tensor([[1.0, 2.0, 90.0, 0.0]])  # whatever it says of the novel class
    q_BK = torch.tensor([[0.3, 0.2, 0.4, 0.1]])
    p_BK = with_novel(logits_BK, q_BK, torch.tensor([False, False, True, False]))
    rest = torch.softmax(torch.tensor([1.0, 2.0, 0.0]), dim=0) * 0.6
    assert torch.allclose(p_BK, torch.tensor([[rest[0], rest[1], 0.4, rest[2]]]))


def test_probabilities_are_never_negative_however_the_posterior_is_rounded() -> None:
    q_BK = torch.tensor([[0.0, 0.7, 0.3000001]])
    p_BK = with_novel(torch.zeros(1, 3), q_BK, torch.tensor([False, True, True]))
    assert (p_BK >= 0).all()


def test_mean_imputation_does_not_look_at_the_window(net) -> None:
    x, made = windows(), tables({"acc": [0, 1, 2, 3], "gyro": [0, 2]})
    model = InferenceModel(net, made, impute="mean_feature")
    with torch.no_grad():
        filled = model.features(torch.tensor([[True, False]]).repeat(4, 1), tuple(x))[1]
    mean_D = normalise(made["gyro"][0][[0, 2]], 8.0).mean(dim=0)
    assert torch.allclose(filled, mean_D.repeat(4, 1), atol=1e-5)
    with torch.no_grad():
        none = InferenceModel(net, {}, impute="mean_feature").features(torch.tensor([[True, False]]), x)[1]
    assert torch.equal(none, torch.zeros_like(none))


@pytest.mark.parametrize(
    ("impute", "trained"),
    [
        pytest.param("prototype", TRAINED, id="one"),
        pytest.param("prototype", np.zeros(K, np.float32), id="all", marks=pytest.mark.long),
        pytest.param("mean_feature", TRAINED, id="mean imputation", marks=pytest.mark.long),
    ],
)
def test_the_graph_knows_novel_classes_as_torch_does(net, impute, trained) -> None:
    model = InferenceModel(net, everywhere([0, 2, 3]), impute=impute, trained=trained)
    found = check(to_onnx(model, TASK), model, TASK)
    assert found.max_difference < 1e-5


def test_only_a_module_with_untrained_classes_pays_for_them(net) -> None:
    made = everywhere([0, 2, 3])
    assert not InferenceModel(net, made).may_be_novel
    assert not InferenceModel(net, made, trained=np.ones(K, np.float32)).may_be_novel
    assert InferenceModel(net, made, trained=TRAINED).may_be_novel


def test_head_and_tables_can_be_replaced_without_making_the_module_anew(net) -> None:
    """As an exported ONNX model with such inputs does: seen, unseen and novel follow the new tables."""
    x = windows()
    first = InferenceModel(net, everywhere([0]), trained=TRAINED)
    torch.manual_seed(11)
    head = {f"net.head.{name}": torch.randn_like(p) for name, p in net.head.named_parameters()}
    made = near(net, everywhere([0, 1, 2, 3]), x)
    buffers = {}
    for m, name in enumerate(net.names):
        buffers |= {f"values_{m}": made[name][0], f"rounds_{m}": made[name][1]}
    with torch.no_grad():
        got = torch.func.functional_call(first, head | buffers, (MASKS, *x))
        want = torch.func.functional_call(InferenceModel(net, made, trained=TRAINED), head, (MASKS, *x))
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert got[0][0].argmax() == NOVEL
