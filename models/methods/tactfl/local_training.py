"""TACTFL's local training: encoders by temporal contrast, the head left alone. Imports torch.

Shapes: B windows, M modalities, S and R segments, C channels, N points of a segment, D features.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Final

import torch
from torch import Tensor

from models.contract import FloatArray, Tensors
from models.methods.tactfl import TactflConfig
from models.methods.tactfl.batch import Streams
from models.methods.tactfl.losses import cosines, overlaps, symmetric
from models.methods.tactfl.segments import Segments, cut, starts
from models.multimodal.network import MultimodalNetwork
from models.training import adam_state, local
from models.training.training_choices import housings_of
from protocol.tasks.task import Task

_FEWEST: Final = 2
"""Windows that contrast needs: one alone has no other to compare with."""


@dataclass(frozen=True)
class _Pair:
    """Two modalities (or one, twice) and the windows of a batch in which they are contrasted."""

    one: str
    other: str
    rows_B: Tensor
    weight: float = 1.0

    @property
    def count(self) -> int:
        """Of its windows."""
        return int(self.rows_B.sum())


def _pairs(streams: Streams, self_weight: float) -> Iterator[_Pair]:
    """Every pair of modalities, with the windows that have both; each modality with itself, if alone.

    With a ``self_weight``, each modality is paired with itself also if it is not alone.
    """
    alone_B = streams.present_BM.sum(dim=1) == 1
    for one, other in combinations(streams.names, 2):
        yield _Pair(one, other, streams.here(one) & streams.here(other))
    for name in streams.names:
        yield _Pair(name, name, streams.here(name) & alone_B)
        if self_weight:
            yield _Pair(name, name, streams.here(name) & ~alone_B, self_weight)


@dataclass
class _Epoch:
    """Sums over the batches of an epoch.

    Attributes:
        trained: windows that each encoder was contrasted on.
        pairs: windows, once for each pair of modalities that they were contrasted in, by its weight.
        loss: by ``pairs``.
        segments: of those.
        matched: segments whose most similar one (but itself) overlaps it in time.
    """

    trained: dict[str, int] = field(default_factory=dict)
    pairs: float = 0.0
    loss: float = 0.0
    segments: int = 0
    matched: int = 0


@dataclass(eq=False, repr=False)
class LocalTraining:
    """One device's training in one round, on the encoders of ``net`` in place.

    Attributes:
        trained: windows that each encoder was contrasted on, in the epoch that had most; other encoders are
            not named.
        kept: Adam's moments, for the device's next round.
    """

    task: Task
    net: MultimodalNetwork
    config: TactflConfig
    generator: torch.Generator
    private: Mapping[str, FloatArray]

    def __post_init__(self) -> None:
        self._length_s = self.task.window.length_s
        self.trained: dict[str, int] = {}
        self.kept: Tensors = {}

    def run(self, streams: Streams, round_: int) -> dict[str, float]:
        """All epochs; the metrics of the last one."""
        config = self.config
        lr = local.learning_rate(config.lr, config.lr_decay, config.lr_min, round_)
        optimizer, sizes = self._begun([name for name in streams.names if bool(streams.here(name).any())], lr)
        self.net.encoders.train()
        epoch, steps = _Epoch(), 0
        for _ in range(config.epochs):
            epoch = _Epoch()
            for index_B in local.batches(len(streams), config.batch, self.generator):
                loss = self._loss(streams.at(index_B), epoch)
                if loss is not None:
                    optimizer.descend(loss)
                    steps += 1
            for name, count in epoch.trained.items():
                self.trained[name] = max(count, self.trained.get(name, 0))
        self.net.eval()
        if config.keep_moments and isinstance(optimizer, local.Adam):
            self.kept = adam_state.kept(optimizer, sizes, self.private)
        if config.remeasure_norms:
            self._remeasure(streams)
        return {
            "loss": epoch.loss / epoch.pairs if epoch.pairs else 0.0,
            "matched": epoch.matched / max(1, epoch.segments),
            "lr": lr,
            "steps": float(steps),
        }

    def _begun(self, names: list[str], lr: float) -> tuple[local.Adam | local.Sgd, dict[str, int]]:
        """An optimizer of these encoders, and how many values each has."""
        config = self.config
        own = {name: list(self.net.encoders[name].parameters()) for name in names}
        sizes = {f"encoder/{name}": sum(p.numel() for p in mine) for name, mine in own.items()}
        parameters = list(chain.from_iterable(own.values()))
        if config.optimizer == "sgd":
            return local.Sgd(parameters, lr, weight_decay=config.weight_decay), sizes
        adam = local.Adam(parameters, lr, config.weight_decay)
        if config.keep_moments:
            adam_state.resume(adam, sizes, self.private)
        return adam, sizes

    def _loss(self, streams: Streams, epoch: _Epoch) -> Tensor | None:
        """Equation (1) over all pairs of modalities, weighted by windows; None: nothing is contrasted."""
        pairs = [pair for pair in _pairs(streams, self.config.self_weight) if pair.count >= _FEWEST]
        names = {name for pair in pairs for name in (pair.one, pair.other)}
        if not names:
            return None
        segments = self._segments(streams, [name for name in streams.names if name in names])
        z = {name: self._encoded(name, cuts) for name, cuts in segments.items()}
        made = [(pair, loss) for pair in pairs if (loss := self._pair(pair, segments, z, epoch)) is not None]
        for name in names:
            rows = [pair.rows_B for pair, _ in made if name in (pair.one, pair.other)]
            if rows:
                epoch.trained[name] = epoch.trained.get(name, 0) + int(torch.stack(rows).any(dim=0).sum())
        if not made:
            return None
        total = torch.stack([pair.weight * pair.count * loss for pair, loss in made]).sum()
        return total / sum(pair.weight * pair.count for pair, _ in made)

    def _segments(self, streams: Streams, names: list[str]) -> dict[str, Segments]:
        """Both segments of every window, at the same times in all modalities, each augmented separately."""
        config = self.config
        start_BG = starts(
            streams.back_s(), self._length_s, config.segment_share, config.segments, self.generator
        )
        made = {name: cut(streams.each[name], start_BG, config.segment_share) for name in names}
        x = local.augmented(
            {name: cuts.x_SCN for name, cuts in made.items()},
            config.rotate_deg,
            config.gain,
            housings_of(self.task, config.housings),
            self.generator,
        )
        if config.jitter:
            x = {name: self._jittered(name, x_SCN) for name, x_SCN in x.items()}
        return {
            name: Segments(x[name], cuts.span_S2, cuts.window_S, cuts.here_S) for name, cuts in made.items()
        }

    def _jittered(self, name: str, x_SCN: Tensor) -> Tensor:
        _, scale = self.net.affine[name]
        return x_SCN + self.config.jitter * scale * torch.randn(x_SCN.shape, generator=self.generator)

    def _encoded(self, name: str, cuts: Segments) -> Tensor:
        """``z_SD``; zeros if the window lacks the modality, which is not encoded."""
        z_HD = self.net.encode(name, cuts.x_SCN[cuts.here_S])
        return z_HD.new_zeros(len(cuts.here_S), z_HD.shape[1]).index_copy(
            0, cuts.here_S.nonzero().squeeze(1), z_HD
        )

    def _pair(
        self, pair: _Pair, segments: Mapping[str, Segments], z: Mapping[str, Tensor], epoch: _Epoch
    ) -> Tensor | None:
        """Equation (1) of one pair, both directions; None if no segment has a counterpart."""
        one, other = segments[pair.one], segments[pair.other]
        rows_S = pair.rows_B[one.window_S]
        cos_SR = cosines(z[pair.one][rows_S], z[pair.other][rows_S])
        tiou_SR = overlaps(
            one.span_S2[rows_S], other.span_S2[rows_S], one.window_S[rows_S], other.window_S[rows_S]
        )
        itself_SR = torch.eye(len(cos_SR), dtype=torch.bool) & (pair.one == pair.other)
        apart_SR = itself_SR if self.config.self_pairs == "skip_same" else torch.zeros_like(itself_SR)
        if not bool((tiou_SR > 0)[~apart_SR].any()):
            return None
        loss = symmetric(cos_SR, tiou_SR, self.config.temperature, apart_SR)
        nearest_S1 = cos_SR.detach().masked_fill(itself_SR, -torch.inf).argmax(dim=1, keepdim=True)
        epoch.loss += pair.weight * pair.count * float(loss.detach())
        epoch.pairs += pair.weight * pair.count
        epoch.matched += int((tiou_SR.gather(1, nearest_S1) > 0).sum())
        epoch.segments += len(cos_SR)
        return loss

    def _remeasure(self, streams: Streams) -> None:
        """BatchNorm statistics of the trained encoders, on whole windows, as at inference."""
        for name in self.trained:
            self.net.measure_norms(name, streams.windows(name))
