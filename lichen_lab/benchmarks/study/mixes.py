"""What devices get of each other's parameters: the plain mean, or a mean of their own. Imports torch.

P devices hold a block, one vector ``w_N`` of N parameters each.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import normalize

Mix = Callable[[Tensor, Tensor], Tensor]
"""``w_PN`` and ``weight_P``, above 0 -> the block of each, (P, N)."""


def mean(w_PN: Tensor, weight_P: Tensor) -> Tensor:
    """All get the weighted mean (federated averaging)."""
    return (weight_P / weight_P.sum() @ w_PN).expand_as(w_PN)


def attention(temperature: float) -> Mix:
    """Each gets a mean of its own, weighted by the correlation of its block with the others' (FedMSplit).

    The weight of p' for p is ``weight_p' * exp(corr(w_p, w_p') / temperature)``, normalised. The correlation
    is that of the blocks minus the mean over the devices, because all have the same initial values.
    """

    def mix(w_PN: Tensor, weight_P: Tensor) -> Tensor:
        around_PN = normalize(w_PN - mean(w_PN, weight_P), dim=1)
        score_PP = around_PN @ around_PN.T / temperature + weight_P.log()
        return score_PP.softmax(dim=1) @ w_PN

    return mix
