"""Stored values of what models of graphs are made of: a changed number is a changed method.

``losses/graphs.json`` holds what :func:`_computed` gave when the file was made. To add one, add it there and
run ``python -m tests.golden.test_golden_graphs`` once.
"""

import json
from pathlib import Path

import numpy as np
import torch

from models.knowledge_graph.networks.autoencoders import step_embedding
from models.knowledge_graph.networks.diffusion import Schedule
from models.knowledge_graph.networks.fusion import FUSIONS, log_probabilities
from models.knowledge_graph.networks.imputation import IMPUTERS, ImputerSettings
from models.knowledge_graph.networks.modality_vectors import imputed, masked_distance
from models.knowledge_graph.training import distillation as d

FILE = Path(__file__).parent / "losses" / "graphs.json"


def _fixed(*shape: int, step: float) -> torch.Tensor:
    """Numbers without a generator: the same on every machine and release."""
    index = torch.arange(int(np.prod(shape)), dtype=torch.float64)
    return torch.sin(index * step + step).to(torch.float32).reshape(shape)


def _set(net: torch.nn.Module) -> torch.nn.Module:
    """The network with fixed parameters."""
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(0.5 * _fixed(*parameter.shape, step=0.6 + 0.1 * i))
    return net


def _computed() -> dict[str, list[float]]:
    h_BPD, made_BPD = _fixed(4, 3, 2, step=0.7), _fixed(4, 3, 2, step=1.1)
    present_BP = torch.tensor(
        [[True, True, True], [True, False, True], [True, True, False], [True, False, False]]
    )
    client_BL, server_BL = (_fixed(5, 4, step=step).log_softmax(dim=1) for step in (0.9, 1.7))
    client_BVD, server_BVD, last_BVD = (_fixed(5, 1, 4, step=step) for step in (0.7, 1.3, 2.3))
    paper, rough = Schedule(5), Schedule(4, low=0.1, high=0.4, scale=1.0)
    step_B = torch.tensor([1, 2, 3, 4])
    x_BH, noise_BH = h_BPD.flatten(1), _fixed(4, 6, step=2.9)
    tensors = {
        "1 of two views": log_probabilities(_fixed(2, 5, 4, step=1.9)),
        "3 betas": 1e6 * paper.beta_T,
        "4 noised": rough.noised(x_BH, step_B, noise_BH),
        "4 sizes of the paper's noise": 1e3 * paper.noise_S,
        "5 the way back": rough.reversed(lambda x, t: x / (1 + t[:, None]), x_BH),
        "6 imputed": imputed(h_BPD, present_BP, made_BPD),
        "7 masked": masked_distance(made_BPD, h_BPD, present_BP),
        "10 one way": d.divergence(client_BL, server_BL),
        "10 both ways": d.logit_distillation(client_BL, server_BL),
        "11 features": d.feature_distillation(client_BVD, server_BVD),
        "17 mean": rough.mean(x_BH, noise_BH, step_B),
        "MMFedEC contrast": d.contrast(client_BVD, server_BVD, last_BVD, 0.5),
        "step embedding": step_embedding(step_B, 4),
    }
    for kind, make in FUSIONS.items():
        tensors[f"fusion {kind}"] = _set(make(3, 2))(h_BPD, present_BP)
    # noise of no account, so that no generator has a part in it
    of = ImputerSettings(widths=(4, 3), blocks=2, steps=2, step_dim=2, scale=1e-30)
    for kind, make in IMPUTERS.items():
        imputer, generator = _set(make(6, of)), torch.Generator().manual_seed(0)
        tensors[f"imputer {kind}"] = imputer(h_BPD, present_BP, generator)
        if kind != "hide":  # its step is drawn
            tensors[f"imputer {kind}, loss"] = imputer.loss(h_BPD, present_BP, generator)
    return {name: [round(float(v), 9) for v in tensor.detach().flatten()] for name, tensor in tensors.items()}


def test_what_graphs_are_modelled_with_computes_the_stored_values():
    stored, computed = json.loads(FILE.read_text()), _computed()
    assert computed.keys() == stored.keys()
    for what, values in stored.items():
        np.testing.assert_allclose(computed[what], values, rtol=1e-5, atol=1e-6, err_msg=what)


if __name__ == "__main__":
    FILE.write_text(json.dumps(_computed(), indent=1) + "\n")
