"""HidE's diffusion (section IV-B): noise added to hyper-modal vectors, and the way back. Imports torch.

Shapes: B entities, P parts, D numbers of a part, H = P * D, T steps. Steps are counted from 1; step 0 is the
vector itself.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

LOW: Final = 5e-4
HIGH: Final = 5e-2
SCALE: Final = 1e-4

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""``xhat_theta(x_BH, step_B)``: the vector itself, predicted from a noised one and its step."""


class Schedule:
    """The noise of each step, and the weights that follow from it.

    With the paper's scale all noise together is small: at T = 100 the variance is 2.5e-4. ``1 - abar`` of a
    few 1e-8 would be lost in float32, so it is computed in float64 and without a difference to 1.

    Args:
        steps: T, at least 1.
        low: the first step's beta before scaling.
        high: the last one's. Between them they rise evenly.
        scale: s, of all.

    Raises:
        ValueError: no step, or a beta outside 0..1.

    Attributes:
        beta_T: variance of each step's noise, float64.
        keep_S: ``sqrt(abar_t)`` by step 0 to T; the factor of the vector.
        noise_S: ``sqrt(1 - abar_t)``; the factor of the noise.
        stay_S: the weight of x_t in equation (17); that of step 0 is 0 and never used.
        made_S: the weight of the predicted vector.
    """

    def __init__(self, steps: int, low: float = LOW, high: float = HIGH, scale: float = SCALE) -> None:
        if steps < 1:
            raise ValueError(f"a diffusion has at least one step, not {steps}")
        if not 0 < scale * low <= scale * high < 1:
            raise ValueError(f"betas must rise within 0..1; they go from {scale * low} to {scale * high}")
        self.steps = steps
        self.beta_T = scale * torch.linspace(low, high, steps, dtype=torch.float64)
        beta_S = torch.nn.functional.pad(self.beta_T, (1, 0))
        log_abar_S = torch.log1p(-beta_S).cumsum(0)
        lost_S = -torch.expm1(log_abar_S)
        before_S = torch.nn.functional.pad(lost_S[:-1], (1, 0))
        safe_S = torch.where(lost_S > 0, lost_S, 1.0)
        self.keep_S = torch.exp(log_abar_S / 2).float()
        self.noise_S = lost_S.sqrt().float()
        self.stay_S = ((1 - beta_S).sqrt() * before_S / safe_S).float()
        self.made_S = ((1 - before_S).sqrt() * beta_S / safe_S).float()

    def noised(self, x_BH: Tensor, step_B: Tensor, noise_BH: Tensor) -> Tensor:
        """Equation (4), reparameterised: ``x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps``."""
        return self.keep_S[step_B, None] * x_BH + self.noise_S[step_B, None] * noise_BH

    def mean(self, x_BH: Tensor, made_BH: Tensor, step_B: Tensor) -> Tensor:
        """Equation (17), the mean of x_{t-1}.

        Args:
            x_BH: x_t.
            made_BH: x_0 as predicted from it.
            step_B: t, from 1; at 1 the mean is ``made_BH``.
        """
        return self.stay_S[step_B, None] * x_BH + self.made_S[step_B, None] * made_BH

    def drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """``step_B``: uniform over 1 to T (equation 8)."""
        return torch.randint(1, self.steps + 1, (count,), generator=generator)

    def reversed(self, net: Denoiser, x_BH: Tensor, gradient_steps: int | None = None) -> Tensor:
        """Equation (5) from step T down, each time at the mean: the vector as the network predicts it.

        Args:
            net: see :data:`Denoiser`.
            x_BH: x_T.
            gradient_steps: gradients flow through these last steps alone; None: through all, up to ``x_BH``.
        """
        for step in range(self.steps, 0, -1):
            step_B = torch.full((len(x_BH),), step)
            flows = gradient_steps is None or step <= gradient_steps
            with torch.set_grad_enabled(torch.is_grad_enabled() and flows):
                x_BH = self.mean(x_BH, net(x_BH, step_B), step_B)
        return x_BH
