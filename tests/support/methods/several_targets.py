"""A task of several targets, and a small network for a part of it: the interface that export needs."""

import torch
from torch import Tensor, nn

from protocol.tasks.task import Modality, Target, Task, Window

TASK = Task(
    name="several",
    method="disentafl",
    labels=("rest", "slow", "fast"),
    modalities=(
        Modality(name="acc", channels=2, rate_hz=8, offset=9.8, scale=4.0),
        Modality(name="cam", channels=1, rate_hz=4, offset=120.0, scale=60.0, input=False),
        Modality(name="gyro", channels=3, rate_hz=8),
    ),
    targets=(
        Target(name="pose", labels=("sit", "stand")),
        Target(name="speed", kind="regression", unit="km/h", offset=1000.0, scale=0.5),
        Target(name="picture", kind="generation", modality="cam"),
    ),
    window=Window(length_s=1.5),
)


class Several(nn.Module):
    """Means of the present modalities, through one layer per target; a device may replace the layers.

    Args:
        modalities: that it reads.
        targets: that it predicts.
    """

    def __init__(
        self,
        modalities: tuple[str, ...] = ("acc", "gyro"),
        targets: tuple[str, ...] = ("label", "pose", "speed", "picture"),
        seed: int = 3,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.modalities = modalities
        self.targets = tuple(TASK.target(name) for name in targets)
        self.read = [TASK.modality(name) for name in modalities]
        self.embed = nn.ModuleList(nn.Linear(m.channels * TASK.samples(m.name), 6) for m in self.read)
        sizes = {t.name: self._generated(t) or (max(1, len(t.labels)),) for t in self.targets}
        self.shapes = list(sizes.values())
        self.lasts = nn.ModuleList(nn.Linear(6, int(torch.tensor(shape).prod())) for shape in self.shapes)

    @staticmethod
    def _generated(target: Target) -> tuple[int, ...]:
        if target.modality is None:
            return ()
        return TASK.modality(target.modality).channels, TASK.samples(target.modality)

    def wire(self) -> dict[str, str]:
        """Path of each last layer's tensors, by wire name."""
        return {
            f"last/{target.name}/fc.{kind}": f"lasts.{i}.{kind}"
            for i, target in enumerate(self.targets)
            for kind in ("weight", "bias")
        }

    def forward(self, present_BM: Tensor, *x: Tensor) -> tuple[Tensor, ...]:
        """In the order of ``protocol.output_names``."""
        here_BM = present_BM > 0.5
        h_B6 = torch.zeros(present_BM.shape[0], 6)
        for m, (modality, embed) in enumerate(zip(self.read, self.embed, strict=True)):
            clean = torch.where(here_BM[:, m, None, None], (x[m] - modality.offset) / modality.scale, 0.0)
            h_B6 = h_B6 + embed(clean.flatten(1))
        made: list[Tensor] = []
        for target, last, shape in zip(self.targets, self.lasts, self.shapes, strict=True):
            y = last(torch.tanh(h_B6)).reshape(-1, *shape)
            if target.kind == "classification":
                made += [torch.softmax(y, dim=1), y]
            elif target.modality is None:
                made.append(y[:, 0] * target.scale + target.offset)
            else:
                cam = TASK.modality(target.modality)
                made.append(y * cam.scale + cam.offset)
        return tuple(made)
