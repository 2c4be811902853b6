"""The server's optimizer: applies a round's mean update to the model. NumPy only, pure.

After Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithms 1 and 2 (FedAdagrad, FedAdam and
FedYogi). With x the model before the round, x' the fold's result, and D = x' - x, by value:

    m <- beta1 m + (1 - beta1) D
    v <- v + D^2                                       (fedadagrad)
    v <- beta2 v + (1 - beta2) D^2                     (fedadam)
    v <- v - (1 - beta2) D^2 sign(v - D^2)             (fedyogi)
    x <- x + lr m / (sqrt(v) + tau)

m begins at 0 and v at tau^2, without bias correction, as in the paper. With ``momentum``, ``fedavg`` is
FedAvgM (Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019):

    m <- momentum m + D
    x <- x + m

The optimizer needs only the fold's result, so it works after every fold. A tensor that no device moved stays,
with its moments. Arithmetic is float64 by value: equal bytes on every machine.

The moments are additional blobs of the version, ``optimizer/first.<blob>`` and
``optimizer/second.<blob>`` (slashes as dots). They are on no device's route, and :func:`model_of` hides them
from methods.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.aggregation.update_norms import STATISTICS, part_of
from models.contract import Blobs, FloatArray, Tensors, blob_of
from models.tensors import flatten, unflatten
from protocol.errors import Misconfigured
from protocol.tasks.folding import Aggregator

PART: Final = "optimizer"
"""First word of the names of the moments' blobs."""
FIRST: Final = f"{PART}/first"
SECOND: Final = f"{PART}/second"
_BLOCK: Final = 1 << 16
_LONGEST: Final = 128
"""Maximum characters of a tensor's name in a frame."""
MAX_VALUE: Final = 1e6
"""Maximum value of a model: beyond, the server's steps are far too long."""
_MOST: Final = float(np.finfo(np.float32).max)
"""Bound of moments: a finite one decays, an infinite one would freeze its values."""

Wide = NDArray[np.float64]
Second = Callable[[Wide, Wide, float], Wide]
"""Computes the next second moment from the last, D^2 and beta2."""


def _adagrad(v: Wide, square: Wide, _beta2: float) -> Wide:
    """Algorithm 2, FedAdagrad."""
    return v + square


def _adam(v: Wide, square: Wide, beta2: float) -> Wide:
    """Algorithm 2, FedAdam."""
    return beta2 * v + (1 - beta2) * square


def _yogi(v: Wide, square: Wide, beta2: float) -> Wide:
    """Algorithm 2, FedYogi."""
    return v - (1 - beta2) * square * np.sign(v - square)


_SECOND: Final[Mapping[str, Second]] = {"fedadagrad": _adagrad, "fedadam": _adam, "fedyogi": _yogi}


def model_of(state: Blobs) -> Blobs:
    """A version without moments, for methods, devices and exports."""
    return {name: tensors for name, tensors in state.items() if not _is_moment(name)}


def rejoined(model: Blobs, state: Blobs) -> Blobs:
    """``model`` with the moments of ``state``, for a model that changed after the fold."""
    return {**model_of(model), **{name: tensors for name, tensors in state.items() if _is_moment(name)}}


def moment_name(which: str, tensor: str) -> str:
    """The name of a tensor's moment, :data:`FIRST` or :data:`SECOND`."""
    blob = blob_of(tensor)
    return f"{which}.{blob.replace('/', '.')}/{tensor.removeprefix(f'{blob}/')}"


def stepped(aggregator: Aggregator, optimised: Collection[str], before: Blobs, after: Blobs) -> Blobs:
    """The next version: the fold's result, its optimised parts replaced by the optimizer's step.

    Args:
        aggregator: kind and options.
        optimised: first words of the blobs that are stepped (:attr:`models.spec.MethodSpec.optimised`);
            the others, and running statistics, take the fold's values.
        before: the version that the round started from, with its moments, if it has any.
        after: the fold's result; its moments are ignored.

    Returns:
        The version, with moments; ``fedavg`` without momentum gives ``after`` without any.

    Raises:
        Misconfigured: no part is optimised, or the step leads to values beyond :data:`MAX_VALUE`; the message
            names the tensor and the option.
    """
    if aggregator.kind not in _SECOND and not aggregator.momentum:
        return model_of(after)
    old, new = flatten(before), flatten(model_of(after))
    stepped_names = [name for name in sorted(new) if _is_stepped(name, optimised)]
    if not stepped_names:
        raise Misconfigured(
            f'aggregator.kind = "{aggregator.kind}": the method has no part that it could step (of '
            f'{", ".join(optimised) or "none"}); use "fedavg" without momentum'
        )
    moments = {name: tensor for name, tensor in old.items() if _is_moment(name)}
    for name in stepped_names:
        if name in old and not np.array_equal(old[name], new[name]):
            new[name] = _step(aggregator, name, old[name], new[name], moments)
    return unflatten({**new, **moments})


def _step(
    aggregator: Aggregator, name: str, old: FloatArray, new: FloatArray, moments: Tensors
) -> FloatArray:
    """Step a tensor, in blocks to bound temporaries; replaces its moments in ``moments``."""
    first, second = _names(aggregator, name)
    adaptive = aggregator.kind in _SECOND
    m_old = moments.get(first, np.zeros(old.shape, np.float32))
    v_old = moments.get(second)
    inputs = [np.ascontiguousarray(tensor).reshape(-1) for tensor in (old, new, m_old)]
    v_flat = None if v_old is None else np.ascontiguousarray(v_old).reshape(-1)
    outputs = [np.empty(old.size, np.float32) for _ in range(3 if adaptive else 2)]
    for start in range(0, old.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        x, x_new, m = (tensor[part].astype(np.float64) for tensor in inputs)
        v = np.full(x.shape, aggregator.tau**2) if v_flat is None else v_flat[part].astype(np.float64)
        block = _block if adaptive else _momentum
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            for tensor, values in zip(outputs, block(aggregator, x, x_new - x, m, v), strict=True):
                tensor[part] = values
    moved, *found = (tensor.reshape(old.shape) for tensor in outputs)
    moments.update(zip((first, second), found, strict=False))
    if not float(np.abs(moved).max(initial=0.0)) <= MAX_VALUE:  # also refuses NaN
        raise Misconfigured(
            f"{_words(aggregator)}: a step takes tensor {name!r} beyond {MAX_VALUE:g}; use a smaller "
            f"{'lr, or a larger tau' if adaptive else 'momentum'}"
        )
    return moved


def _words(aggregator: Aggregator) -> str:
    if aggregator.kind in _SECOND:
        return f"aggregator.lr = {aggregator.lr:g} with tau = {aggregator.tau:g} and {aggregator.kind}"
    return f"aggregator.momentum = {aggregator.momentum:g}"


def _block(aggregator: Aggregator, x: Wide, delta: Wide, m: Wide, v: Wide) -> tuple[Wide, ...]:
    """Algorithm 2 on a block: the next values and moments."""
    m_new = aggregator.beta1 * m + (1 - aggregator.beta1) * delta
    v_new = _SECOND[aggregator.kind](v, np.square(delta), aggregator.beta2)
    moved = x + aggregator.lr * m_new / (np.sqrt(v_new) + aggregator.tau)
    return moved, m_new, np.minimum(v_new, _MOST)


def _momentum(aggregator: Aggregator, x: Wide, delta: Wide, m: Wide, _v: Wide) -> tuple[Wide, ...]:
    """FedAvgM on a block: the next values and moment."""
    m_new = aggregator.momentum * m + delta
    return x + m_new, m_new


def _names(aggregator: Aggregator, tensor: str) -> tuple[str, str]:
    """Names of a tensor's two moments."""
    first, second = moment_name(FIRST, tensor), moment_name(SECOND, tensor)
    if len(second) > _LONGEST:
        raise Misconfigured(
            f'aggregator.kind = "{aggregator.kind}": a moment of tensor {tensor!r} has a name of '
            f"{len(second)} characters, and at most {_LONGEST} can be stored; give modalities shorter names"
        )
    return first, second


def _is_stepped(tensor: str, optimised: Collection[str]) -> bool:
    return tensor.split("/", 1)[0] in optimised and not part_of(tensor).endswith(STATISTICS)


def _is_moment(name: str) -> bool:
    return name.split("/", 1)[0] == PART
