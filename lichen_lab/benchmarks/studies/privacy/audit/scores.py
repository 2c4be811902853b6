"""What a model says of single windows: probabilities, losses and gradients. Imports torch."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from models import registry
from models.contract import Blobs, ClientContext, FloatArray, WindowSet
from models.data.window_set import select
from models.methods.fedavg import METHOD
from models.multimodal.inference import probabilities
from models.multimodal.network import MultimodalNetwork, build, load_blobs
from models.multimodal.prototypes import normalise
from models.tensors import apply, flatten, unflatten
from models.training import local
from models.training.supervised import cross_entropy, whole
from protocol.tasks.task import Task

_LEAST = 1e-7


def log_odds(task: Task, state: Blobs, windows: WindowSet) -> NDArray[np.float64]:
    """``log(p / (1 - p))`` of the true class of each window, as the exported model computes p, (B,)."""
    model = registry.method(task.method).client().inference_model(task, state)
    p_B = probabilities(model, windows)[np.arange(len(windows)), windows.y_B].astype(np.float64)
    p_B = np.clip(p_B, _LEAST, 1 - _LEAST)
    odds_B: NDArray[np.float64] = np.log(p_B / (1 - p_B))
    return odds_B


def losses(task: Task, state: Blobs, windows: WindowSet) -> NDArray[np.float64]:
    """The log loss of each window, (B,)."""
    loss_B: NDArray[np.float64] = np.log1p(np.exp(-log_odds(task, state, windows)))
    return loss_B


def network(task: Task, state: Blobs) -> MultimodalNetwork:
    """The network of a version, as at inference: BatchNorm uses the running statistics."""
    local.start_deterministic(0)
    net = build(task)
    load_blobs(net, state)
    net.eval()
    return net


def last_parameters(net: MultimodalNetwork) -> dict[str, torch.Tensor]:
    """Those of them behind every BatchNorm: a window's gradient of them does not depend on its batch."""
    return {name: tensor for name, tensor in parameters(net).items() if "/convolutions" not in name}


def parameters(net: MultimodalNetwork) -> dict[str, torch.Tensor]:
    """Tensors that training moves, by full name."""
    return {name: tensor for name, tensor in net.sent.items() if tensor.requires_grad}


def gradients(task: Task, state: Blobs, windows: WindowSet) -> FloatArray:
    """The gradient of each window's loss, of :func:`last_parameters` in order, (B, P)."""
    net, config = network(task, state), METHOD.configure(task)
    wanted, found = list(last_parameters(net).values()), []
    for place in range(len(windows)):
        batch = whole(select(windows, [place]), net.names)
        z = {name: net.encode(name, batch.x[name]) for name in net.names}
        if config.normalise:
            z = {name: normalise(z_BD, config.feature_scale) for name, z_BD in z.items()}
        made = torch.autograd.grad(cross_entropy(net.classify(z), batch.y_B), wanted)
        found.append(torch.cat([one.reshape(-1) for one in made]).numpy())
    return np.stack(found)


def trained(task: Task, windows: WindowSet, state: Blobs, seed: int, rounds: int) -> Blobs:
    """A model after so many rounds of one device with all windows."""
    client = registry.method(task.method).client()
    for round_ in range(1, rounds + 1):
        result = client.train(ClientContext(task, "reference", round_, seed), windows, state, {})
        state = state | unflatten(apply(flatten(state), result.tensors))
    return state


def reference_odds(
    task: Task, windows: WindowSet, seed: int, rounds: int, models: int
) -> Sequence[tuple[NDArray[np.bool_], NDArray[np.float64]]]:
    """The attacker's own models, each trained on half of the windows: which (B,), and log-odds of all (B,).

    They come in pairs of opposite halves, so each window is outside half of the models.
    """
    rng, made = np.random.default_rng((seed, 505)), []
    client = registry.method(task.method).client()
    for number in range(models // 2):
        half_B = np.zeros(len(windows), np.bool_)
        half_B[rng.permutation(len(windows))[: len(windows) // 2]] = True
        for in_B in (half_B, ~half_B):
            state = client.initial(task, seed + 1000 + number)
            state = trained(task, select(windows, in_B), state, seed + number, rounds)
            made.append((in_B, log_odds(task, state, windows)))
    return made
