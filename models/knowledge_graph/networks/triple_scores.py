"""Scores f(h, r, e): how well an entity answers (h, r, ?). Imports torch.

Every score computes a *query* from head and relation and compares it with entities. So B queries against the
same K entities are one matrix product, whether the K are negatives that a batch shares or all entities there
are.

Shapes: B queries, K entities, U entities of which only some are asked about, D entity dim, C relation dim. A
complex vector is stored as its real parts, then its imaginary parts.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

_NEAREST: Final = 1e-12
"""Lower bound of a squared distance: its root has no gradient at zero, and rounding may make it negative."""
_SPAN_EXTRA: Final = 2.0
"""Added to gamma in the initial span, as the authors of RotatE do."""
_MATRIX: Final = 64
"""Entities that a query is multiplied with in the time of fetching one for it alone (measured on x86: 55 to
95)."""


class Score(ABC):
    """A score function; it has no parameters of its own.

    Args:
        dim: D.
        gamma: the margin: a distance scores ``gamma - distance``. A softmax over scores does not depend on
            it; it sets the initial span of embeddings, and so how far apart scores begin.

    Raises:
        ValueError: a number is not positive, or ``dim`` is odd and the score needs complex numbers.
    """

    complex_valued: bool
    """Whether entities are vectors of D / 2 complex numbers."""

    def __init__(self, dim: int, gamma: float = 12.0) -> None:
        if dim < 1 or not (math.isfinite(gamma) and gamma > 0):
            raise ValueError(f"dim {dim} and gamma {gamma} must be positive")
        if self.complex_valued and dim % 2:
            raise ValueError(f"dim {dim} is odd; entities are complex numbers here, stored as two halves")
        self.dim = dim
        self.gamma = gamma

    @property
    def relation_dim(self) -> int:
        """C."""
        return self.dim

    @property
    def span(self) -> float:
        """Initial embeddings are uniform in ``[-span, span]``: (gamma + 2) over the numbers in a vector."""
        return (self.gamma + _SPAN_EXTRA) / (self.dim // 2 if self.complex_valued else self.dim)

    def initial(self, rows: int, generator: torch.Generator, *, relations: bool = False) -> Tensor:
        """Initial embeddings, float32 ``(rows, D)``, or ``(rows, C)`` for relations."""
        width = self.relation_dim if relations else self.dim
        return (2 * torch.rand(rows, width, generator=generator) - 1) * self.span

    @abstractmethod
    def queries(self, h_BD: Tensor, r_BC: Tensor) -> Tensor:
        """``q_BD`` of heads and relations."""

    @abstractmethod
    def score(self, q_BD: Tensor, e_KD: Tensor) -> Tensor:
        """``s_BK``: every query with every entity."""

    @abstractmethod
    def picked(self, q_BD: Tensor, e_UD: Tensor, pick_BK: Tensor) -> Tensor:
        """``s_BK``: every query with entities of its own.

        Args:
            q_BD: queries.
            e_UD: entities.
            pick_BK: int64, rows of ``e_UD``.
        """

    @abstractmethod
    def paired(self, q_BD: Tensor, e_BD: Tensor) -> Tensor:
        """``s_B``: each query with the entity in the same row."""


class _Product(Score):
    """Scores that are inner products of query and entity."""

    def score(self, q_BD: Tensor, e_KD: Tensor) -> Tensor:
        return q_BD @ e_KD.T

    def picked(self, q_BD: Tensor, e_UD: Tensor, pick_BK: Tensor) -> Tensor:
        return _products(q_BD, e_UD, pick_BK)

    def paired(self, q_BD: Tensor, e_BD: Tensor) -> Tensor:
        return (q_BD * e_BD).sum(dim=1)


class _Distance(Score):
    """Scores ``gamma - |q - e|``, the distance Euclidean over all D numbers.

    |q - e|^2 = |q|^2 - 2 q.e + |e|^2 is a matrix product; near zero it loses digits, so that a distance is
    good to about 1e-3 of the vectors' length in float32. :meth:`paired` has no such loss.
    """

    def score(self, q_BD: Tensor, e_KD: Tensor) -> Tensor:
        q_B1, e_K = q_BD.square().sum(dim=1, keepdim=True), e_KD.square().sum(dim=1)
        return self._of_square(torch.addmm(e_K, q_BD, e_KD.T, alpha=-2) + q_B1)

    def picked(self, q_BD: Tensor, e_UD: Tensor, pick_BK: Tensor) -> Tensor:
        q_B1, e_U = q_BD.square().sum(dim=1, keepdim=True), e_UD.square().sum(dim=1)
        return self._of_square(q_B1 - 2 * _products(q_BD, e_UD, pick_BK) + e_U[pick_BK])

    def paired(self, q_BD: Tensor, e_BD: Tensor) -> Tensor:
        return self._of_square((q_BD - e_BD).square().sum(dim=1))

    def _of_square(self, square: Tensor) -> Tensor:
        return self.gamma - square.clamp(min=_NEAREST).sqrt()


class TransE(_Distance):
    """A relation moves its head: ``gamma - |h + r - e|`` (Bordes et al. 2013, Euclidean)."""

    complex_valued = False

    def queries(self, h_BD: Tensor, r_BC: Tensor) -> Tensor:
        """``q_BD = h + r``."""
        return h_BD + r_BC


class RotatE(_Distance):
    """A relation rotates its head's complex numbers: ``gamma - |h * exp(i phase) - e|`` (Sun et al. 2019).

    The authors sum the D / 2 moduli of the difference; here it is the Euclidean length, a matrix product. As
    in their code, a relation stores its phases times ``span / pi``, so that it learns as fast as the
    entities.
    """

    complex_valued = True

    @property
    def relation_dim(self) -> int:
        """C = D / 2 phases."""
        return self.dim // 2

    def queries(self, h_BD: Tensor, r_BC: Tensor) -> Tensor:
        """``q_BD``, every complex number of the head rotated by its phase."""
        phase_BC = r_BC * (math.pi / self.span)
        return _complex_product(h_BD, torch.cat((phase_BC.cos(), phase_BC.sin()), dim=1))


class ComplEx(_Product):
    """The real part of ``sum(h * r * conj(e))`` (Trouillon et al. 2016)."""

    complex_valued = True

    def queries(self, h_BD: Tensor, r_BC: Tensor) -> Tensor:
        """``q_BD = h * r``, complex."""
        return _complex_product(h_BD, r_BC)


def _complex_product(a_BD: Tensor, b_BD: Tensor) -> Tensor:
    a_real, a_imag = a_BD.chunk(2, dim=1)
    b_real, b_imag = b_BD.chunk(2, dim=1)
    return torch.cat((a_real * b_real - a_imag * b_imag, a_real * b_imag + a_imag * b_real), dim=1)


def _products(q_BD: Tensor, e_UD: Tensor, pick_BK: Tensor) -> Tensor:
    """Inner products ``(B, K)`` of each query with the entities it picks, by the cheaper of two ways."""
    if len(e_UD) <= _MATRIX * pick_BK.shape[1]:
        return (q_BD @ e_UD.T).gather(1, pick_BK)
    return torch.einsum("bd,bkd->bk", q_BD, e_UD[pick_BK])


SCORES: Final[Mapping[str, Callable[[int, float], Score]]] = MappingProxyType(
    {"rotate": RotatE, "transe": TransE, "complex": ComplEx}
)
"""By the score's name in a task: creates the score of D and gamma."""
