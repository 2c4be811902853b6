"""Stored values of every method's equations: a changed number is a changed method (a CHANGELOG line).

``losses/<method>.json`` holds what :func:`_qqr` and its like computed when the file was made. To add one,
add its function to ``COMPUTED`` and run ``python -m tests.golden.test_golden_losses`` once.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from models.knowledge_graph.data.initial_embeddings import initial_rows
from models.methods.disentafl import losses as disentafl
from models.methods.disentafl.routing import mean_features
from models.methods.fedavg import FedAvgConfig
from models.methods.mmfed3_hide import MmFed3Config
from models.methods.mmfed3_hide import losses as mmfed3
from models.methods.qqr import QqrConfig, losses, prototypes
from models.methods.qqr.prototyper import class_means
from models.methods.tactfl import losses as tactfl
from models.multimodal import prototypes as pt
from models.registry import methods
from models.training.local import Sgd
from models.training.softmax_regression import BIAS, WEIGHT, SoftmaxRegression
from models.training.supervised import cross_entropy

FOLDER = Path(__file__).parent / "losses"


def _fixed(*shape: int, step: float) -> torch.Tensor:
    """Numbers without a generator: the same on every machine and release."""
    index = torch.arange(int(np.prod(shape)), dtype=torch.float64)
    return torch.sin(index * step + step).to(torch.float32).reshape(shape)


def _qqr() -> dict[str, list[float]]:
    z_BD, vbar_KD = _fixed(5, 4, step=0.7), _fixed(3, 4, step=1.3)
    y_B = torch.tensor([0, 2, 1, 2, 0])
    present_B = torch.tensor([True, True, False, True, False])
    present_BM = torch.stack([present_B, torch.ones(5, dtype=torch.bool)], dim=1)
    seen_K = torch.tensor([True, False, True])
    logits_BK = _fixed(5, 3, step=2.1)
    v_KD, count_K = map(torch.from_numpy, class_means(z_BD[present_B].numpy(), y_B[present_B].numpy(), 3))
    pce_B = losses.prototype_cross_entropy(z_BD, y_B, vbar_KD, seen_K)
    pce_MB = torch.stack([pce_B, 2 * pce_B])
    quality_MB = torch.stack([present_B, ~present_B])
    ce = cross_entropy(logits_BK, y_B)
    rounds_K = np.float32([0, 2, 5])
    arguments = (vbar_KD.numpy(), rounds_K, v_KD.numpy(), (count_K > 0).numpy())
    mean_KD, mean_rounds_K = prototypes.cumulative(*arguments, QqrConfig())
    fading = QqrConfig(forgetting="exponential", forgetting_rate=0.5)
    many_BD, many_B = _fixed(15, 4, step=0.9).numpy(), np.arange(15) // 5
    posterior_BK = pt.posterior([z_BD, -z_BD], present_BM, [vbar_KD, 2 * vbar_KD], [seen_K, seen_K])
    tensors = {
        "beyond posterior": posterior_BK,
        "beyond expected": pt.expected(posterior_BK, vbar_KD, seen_K),
        "beyond expected, classes alike": pt.expected(torch.ones(5, 3), vbar_KD, seen_K),
        "beyond with_novel": pt.with_novel(logits_BK, posterior_BK, torch.tensor([False, False, True])),
        "13 trimmed": torch.from_numpy(class_means(many_BD, many_B, 3, trim=0.4)[0]),
        "13 class_means": v_KD,
        "13 counts": count_K,
        "16 cumulative": torch.from_numpy(mean_KD),
        "16 rounds": torch.from_numpy(mean_rounds_K),
        "16 exponential": torch.from_numpy(prototypes.cumulative(*arguments, fading)[0]),
        "18 imputed": losses.imputed(z_BD, present_B, y_B, vbar_KD),
        "18 imputed_by_posterior": torch.stack(
            losses.imputed_by_posterior([z_BD, -z_BD], present_BM, [vbar_KD, 2 * vbar_KD], [seen_K, seen_K])
        ),
        "18 imputed_by_mean": losses.imputed_by_mean(z_BD, present_B, vbar_KD, seen_K),
        "20 cross_entropy": ce,
        "21 prototype_cross_entropy": pce_B,
        "22 rebalanced": losses.rebalanced(ce, pce_MB, quality_MB, 0.5),
    }
    return _stored(tensors)


def _disentafl() -> dict[str, list[float]]:
    logits_BK, y_B = _fixed(5, 3, step=2.1), torch.tensor([0, 2, 1, 2, 0])
    labelled_B = torch.tensor([True, True, False, True, True])
    made_BS, true_BS = _fixed(5, 4, step=0.7), _fixed(5, 4, step=1.1)
    share_BMH, z_BQF = _fixed(5, 3, 4, step=0.9), _fixed(5, 4, 6, step=1.7)
    there_BQ = torch.stack([labelled_B, ~labelled_B, labelled_B, torch.ones(5, dtype=torch.bool)], dim=1)
    old_KF, mean_KF = _fixed(3, 2, step=0.6).numpy(), _fixed(3, 2, step=2.3).numpy()
    seen_K = np.array([True, True, False])
    values_KF, rounds_K = mean_features.cumulative(old_KF, np.float32([0, 3, 2]), mean_KF, seen_K)
    terms = {
        "cross_entropy": disentafl.cross_entropy(logits_BK, y_B, labelled_B),
        "squared_error": disentafl.squared_error(made_BS, true_BS, labelled_B),
        "alignment": disentafl.alignment(share_BMH, there_BQ[:, [0, 1, 3]]),
        "orthogonality": disentafl.orthogonality(z_BQF, there_BQ),
        "distillation": disentafl.distillation(z_BQF, 0.5 * z_BQF, there_BQ),
    }
    objectives = [terms["cross_entropy"], terms["squared_error"]]
    total = disentafl.total(objectives, terms["alignment"], terms["orthogonality"], (1.2, 4.0))
    return _stored(
        terms
        | {
            "total": total,
            "features": torch.from_numpy(values_KF),
            "features rounds": torch.from_numpy(rounds_K),
        }
    )


def _tactfl() -> dict[str, list[float]]:
    z_SD, z_RD = _fixed(6, 4, step=0.7), _fixed(6, 4, step=1.3)
    start_S = torch.tensor([0.0, 0.2, 0.1, 0.4, 0.0, 0.9], dtype=torch.float64)
    span_S2 = torch.stack([start_S, start_S + 0.8], dim=1)
    span_R2 = torch.stack([start_S.flip(0), start_S.flip(0) + 0.6], dim=1)
    window_S = torch.tensor([0, 1, 2, 0, 1, 2])
    itself_SS = torch.eye(6, dtype=torch.bool)
    tiou_SR = tactfl.overlaps(span_S2, span_R2, window_S, window_S)
    tiou_SS = tactfl.overlaps(span_S2, span_S2, window_S, window_S)
    target_SR = tactfl.soft_targets(tiou_SR).to(torch.float32)
    cos_SR, cos_SS = tactfl.cosines(z_SD, z_RD), tactfl.cosines(z_SD, z_SD)
    return _stored(
        {
            "tIoU": tiou_SR,
            "P": target_SR,
            "2 cosines": cos_SR,
            "1 contrast": tactfl.contrast(cos_SR, target_SR, 0.1),
            "1 both directions": tactfl.symmetric(cos_SR, tiou_SR, 0.1),
            "1 a modality with itself": tactfl.symmetric(cos_SS, tiou_SS, 0.1),
            "1 a modality with itself, no segment its own counterpart": tactfl.symmetric(
                cos_SS, tiou_SS, 0.1, itself_SS
            ),
        }
    )


def _mmfed3_hide() -> dict[str, list[float]]:
    own_BL, fleet_BL = _fixed(5, 4, step=0.9), _fixed(5, 4, step=1.7)
    own_UVD, fleet_UVD, last_UVD = (_fixed(5, 2, 4, step=step) for step in (0.7, 1.3, 2.3))
    sides = (own_BL, fleet_BL, own_UVD, fleet_UVD)
    known_U = torch.tensor([True, True, False, True, True])
    kept = MmFed3Config(dual=False, prox=0.5, contrast=0.25)
    keys_K16 = np.arange(48, dtype=np.uint8).reshape(3, 16)
    return _stored(
        {
            "12 dual": mmfed3.dual(MmFed3Config(logits=0.5, feature=0.25), *sides),
            "12 dual, one way up": mmfed3.dual(MmFed3Config(logits_way="up", feature=0.0), *sides),
            "12 dual, neither": mmfed3.dual(MmFed3Config(logits=0.0, feature=0.0), *sides),
            "MMFedProx and MMFedEC": mmfed3.towards(kept, own_UVD, fleet_UVD, last_UVD, known_U),
            "no term": mmfed3.towards(MmFed3Config(dual=False), own_UVD, fleet_UVD, last_UVD, known_U),
            "rows of a new entity": torch.from_numpy(initial_rows(7, keys_K16, 4, MmFed3Config().span)),
        }
    )


def _fedavg() -> dict[str, list[float]]:
    logits_BK, y_B = _fixed(5, 3, step=1.3), torch.tensor([0, 2, 1, 2, 0])
    moved = _fixed(4, step=0.7).float().requires_grad_()
    proximal = Sgd([moved], 0.1, momentum=0.5, weight_decay=0.01, proximal=0.4)
    for _ in range(3):
        proximal.descend(moved.square().sum())
    head = {WEIGHT: _fixed(3, 4, step=0.9).float().numpy(), BIAS: np.zeros(3, np.float32)}
    options = FedAvgConfig(lr=0.3, batch=8, epochs=3, class_weights={"a": 2.0})
    layer = SoftmaxRegression(("a", "b", "c"), options, head, np.random.default_rng(1), proximal=0.4)
    layer.run(_fixed(5, 4, step=1.1).float().numpy(), y_B.numpy(), 2)
    return _stored(
        {
            "cross-entropy": cross_entropy(logits_BK, y_B),
            "cross-entropy by class": cross_entropy(logits_BK, y_B, _fixed(3, step=0.5).abs()),
            "proximal steps": moved.detach(),
            "steps of a layer": torch.from_numpy(layer.head[WEIGHT]),
        }
    )


def _stored(tensors: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    return {name: [round(float(v), 9) for v in tensor.flatten()] for name, tensor in tensors.items()}


COMPUTED = {
    "disentafl": _disentafl,
    "fedavg": _fedavg,
    "mmfed3_hide": _mmfed3_hide,
    "qqr": _qqr,
    "tactfl": _tactfl,
}


@pytest.mark.parametrize("name", methods())
def test_the_losses_are_the_stored_ones(name):
    stored = json.loads((FOLDER / f"{name}.json").read_text())
    computed = COMPUTED[name]()
    assert computed.keys() == stored.keys()
    for equation, values in stored.items():
        np.testing.assert_allclose(computed[equation], values, rtol=1e-5, atol=1e-6, err_msg=equation)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for method_name, compute in COMPUTED.items():
        (FOLDER / f"{method_name}.json").write_text(json.dumps(compute(), indent=1) + "\n")
