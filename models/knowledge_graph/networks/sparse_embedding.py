"""A table of embeddings; each step moves only the rows that it used. Imports torch.

Shapes: E rows, D columns, B rows asked for (any may repeat), U different ones.
"""

import torch
from torch import Tensor

from models.training.local import Adam


class EmbeddingRows:
    """A table and Adam on its rows, each with its own moments and count of steps.

    So a row depends on its own gradients alone: a row that is in no batch is unchanged to the bit, and one
    used late is corrected for its few steps, not for the table's many. No gradient of the whole table is ever
    computed.

    Args:
        value_ED: float32; changed in place by :meth:`step`.
        lr: step size.
        betas: of the gradient's running mean, and of its square's.
        eps: keeps steps of small gradients finite.
    """

    def __init__(
        self, value_ED: Tensor, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.value_ED = value_ED.detach()
        self.lr = lr
        self.mean_ED, self.square_ED = torch.zeros_like(self.value_ED), torch.zeros_like(self.value_ED)
        self.steps_E = torch.zeros(len(value_ED), dtype=torch.int64)
        self._betas, self._eps = betas, eps
        self._taken: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return len(self.value_ED)

    def resume(self, mean_ED: Tensor, square_ED: Tensor, steps_E: Tensor) -> None:
        """Continue with the moments of an earlier table of the same shape; they are changed in place."""
        self.mean_ED, self.square_ED, self.steps_E = mean_ED, square_ED, steps_E

    def take(self, rows_B: Tensor) -> Tensor:
        """Embeddings ``(B, D)`` of rows for this step's loss; the next :meth:`step` moves them.

        A step may take several times, also the same rows: their gradients add up.
        """
        rows_U, back_B = torch.unique(rows_B, return_inverse=True)
        leaf_UD = self.value_ED[rows_U].requires_grad_()
        self._taken.append((rows_U, leaf_UD))
        return leaf_UD if torch.equal(rows_U, rows_B) else leaf_UD[back_B]

    def step(self) -> None:
        """Move the rows that were taken since the last step and have a gradient."""
        sloped = [(rows_U, leaf_UD.grad) for rows_U, leaf_UD in self._taken if leaf_UD.grad is not None]
        self._taken.clear()
        if not sloped:
            return
        rows_U, slope_UD = sloped[0]
        if len(sloped) > 1:
            rows_U, back_P = torch.unique(torch.cat([rows for rows, _ in sloped]), return_inverse=True)
            slope_UD = torch.zeros(len(rows_U), self.value_ED.shape[1])
            slope_UD.index_add_(0, back_P, torch.cat([slope for _, slope in sloped]))
        self._move(rows_U, slope_UD)

    def _move(self, rows_U: Tensor, slope_UD: Tensor) -> None:
        first, second = self._betas
        steps_U = self.steps_E[rows_U] + 1
        mean_UD = self.mean_ED[rows_U].lerp_(slope_UD, 1 - first)
        square_UD = self.square_ED[rows_U].mul_(second).addcmul_(slope_UD, slope_UD, value=1 - second)
        self.steps_E[rows_U], self.mean_ED[rows_U], self.square_ED[rows_U] = steps_U, mean_UD, square_UD
        mean_short_U1, square_short_U1 = (
            (1 - beta ** steps_U.to(torch.float64)).to(slope_UD.dtype)[:, None] for beta in self._betas
        )
        root_UD = (square_UD / square_short_U1).sqrt_().add_(self._eps)
        self.value_ED.index_add_(0, rows_U, mean_UD.div_(mean_short_U1).div_(root_UD), alpha=-self.lr)


class Descent:
    """One optimizer step of everything that a loss depends on.

    Args:
        tables: embeddings by row.
        dense: all other parameters (projections, networks), or None if there are none.
    """

    def __init__(self, *tables: EmbeddingRows, dense: Adam | None = None) -> None:
        self._tables = tables
        self._dense = dense

    def descend(self, loss: Tensor) -> None:
        """Move along the loss's negative gradient."""
        if self._dense is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._dense.descend(loss)
        for table in self._tables:
            table.step()
