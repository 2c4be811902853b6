"""Training loop of all baselines: in each round all devices train, then share. Imports torch.

Local training, batches and losses are DisentAFL's without the auxiliary losses. Nothing is quantized, and
all training windows of a device train: none are held out to choose domains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.disentafl.baselines import distil
from lichen_lab.benchmarks.studies.disentafl.baselines.device import BaselineDevice
from lichen_lab.benchmarks.studies.disentafl.baselines.network import BaselineNetwork
from lichen_lab.benchmarks.studies.disentafl.baselines.sharing import (
    LAST,
    Blocks,
    Linked,
    mixed,
)
from lichen_lab.benchmarks.studies.disentafl.scores import score
from lichen_lab.benchmarks.studies.disentafl.settings import (
    NETWORK,
    DisentAflOutcome,
    DisentAflSetting,
    Scores,
    TargetFleet,
    fleet_mean,
    looks,
)
from lichen_lab.benchmarks.studies.disentafl.variants import TITLES
from lichen_lab.benchmarks.study import federation as study
from lichen_lab.benchmarks.study.mixes import Mix, mean
from models.contract import Profile
from models.methods.disentafl import DisentAflConfig
from models.seeds import derive_seed
from protocol.frames.tensors import Codec, encode
from protocol.tasks.task import Task

_OURS_TOO: Final = (
    "tokens",
    "layers",
    "heads",
    "lr_decay",
    "weight_decay",
    "last_layer",
    "last_share",
    "own_share",
)
"""Options of encoders, training and what devices keep, that mean the same to DisentAFL."""
_SHARED_LAST: Final = {"last_layer": "shared"}
"""The baselines' default; DisentAFL's is another."""
_COMMON: Final[Mapping[str, float]] = {"keep_adam": True}
"""Options of every baseline. ``keep_adam``: Adam keeps a device's moments between rounds."""


@dataclass(frozen=True)
class SharingBaseline:
    """Definition of one baseline.

    Attributes:
        name: a name of :mod:`lichen_lab.benchmarks.studies.disentafl.variants`.
        network: makes a device's network.
        linked: whether two devices share a block.
        mix: makes, from options, the function that mixes a block of linked devices.
        options: own options with their defaults.
        distils: whether two devices exchange mean features of a segment; None: no devices do.
        shares: whether devices send anything.
    """

    name: str
    network: Callable[[Task, Profile, DisentAflConfig, int], BaselineNetwork]
    linked: Linked
    mix: Callable[[Mapping[str, float]], Mix]
    options: Mapping[str, float] = field(default_factory=dict)
    distils: Linked | None = None
    shares: bool = True


class SharingRun:
    """One run of one baseline."""

    def __init__(
        self, baseline: SharingBaseline, fleet: TargetFleet, setting: DisentAflSetting, seed: int
    ) -> None:
        self.config, self.options = options_of(baseline, setting)
        self.baseline, self.fleet, self.seed, config = baseline, fleet, seed, self.config
        self.devices = {
            member.name: BaselineDevice(
                member, fleet.task, baseline.network(fleet.task, member.profile, config, seed), config
            )
            for member in fleet.members
        }
        self.profiles = {member.name: member.profile for member in fleet.members}
        self.weights = {member.name: float(len(member.train)) for member in fleet.members}
        self.mix = baseline.mix(self.options)
        self.sums: dict[str, distil.Sums] = {}
        self.initial = self._held()
        self.trained = self.initial
        """Each device's blocks after its last training."""

    def _held(self) -> dict[str, Blocks]:
        return {name: device.held() for name, device in self.devices.items()}

    def _stays(self, block: str) -> bool:
        """Whether a block never leaves its device."""
        return self.config.last_layer == "private" and block.startswith(LAST)

    def _mixed(self, mix: Mix) -> dict[str, Blocks]:
        """What linked devices get of what they send; a private last layer is not among it."""
        sent = {
            name: {block: w_N for block, w_N in blocks.items() if not self._stays(block)}
            for name, blocks in self.trained.items()
        }
        return mixed(sent, self.profiles, self.weights, self.baseline.linked, mix)

    def train(self, round_: int) -> None:
        """Train every device for one round."""
        weight, keep = self.options.get("distil", 0.0), bool(self.options["keep_adam"])
        self.sums = {
            name: device.train(round_, derive_seed(self.seed, name, round_), weight, keep_adam=keep)
            for name, device in self.devices.items()
        }

    def share(self) -> None:
        """Mix the blocks of linked devices and give each device its result."""
        if not self.baseline.shares:
            return
        self.trained = self._held()
        for name, blocks in self._mixed(self.mix).items():
            own = self.trained[name]
            self.devices[name].take(
                {b: w_N if b.startswith(LAST) else self._own(w_N, own[b]) for b, w_N in blocks.items()}
            )
        if self.baseline.distils is not None:
            means = distil.exchanged(self.sums, self.profiles, self.baseline.distils)
            for name, rows in means.items():
                self.devices[name].rows = rows

    def scores(self) -> Scores:
        """Scores of the devices' current networks."""
        return {
            name: score(self.fleet, device.member, device.outputs()) for name, device in self.devices.items()
        }

    def _own(self, ours_N: Tensor, own_N: Tensor) -> Tensor:
        """The fleet's block and ``own_share`` of the device's own."""
        return ours_N.lerp(own_N, self.config.own_share) if self.config.own_share else ours_N

    def given(self) -> Scores:
        """Scores of what each device predicts with until it trains again."""
        if self.config.last_layer != "interpolated":
            return self.scores()
        share = self.config.last_share
        return self._scores_with(
            {
                name: {
                    b: w_N.lerp(self.trained[name][b], share) for b, w_N in now.items() if b.startswith(LAST)
                }
                for name, now in self._held().items()
            }
        )

    def newcomer(self) -> Scores:
        """Scores of what a device of each profile gets that has nothing of its own.

        A mean of its own (FedMSplit) needs an own block to compare; the newcomer gets the plain mean.
        """
        made = self._mixed(mean)
        return self._scores_with({name: self.initial[name] | blocks for name, blocks in made.items()})

    def _scores_with(self, blocks: Mapping[str, Blocks]) -> Scores:
        """Scores of the devices' networks with these blocks in place; then they are as before."""
        before = self._held()
        for name, some in blocks.items():
            self.devices[name].take(some)
        scores = self.scores()
        for name, all_ in before.items():
            self.devices[name].take(all_)
        return scores

    def traffic(self, name: str) -> tuple[float, float]:
        """Bytes up and down of a device in a round: shared blocks and mean features.

        Up in the study's codec, as for DisentAFL, down in float32; without names and headers.
        """
        if not self.baseline.shares:
            return 0.0, 0.0
        device = self.devices[name]
        blocks = ((name, block) for name, block in device.blocks.items() if not self._stays(name))
        parts = [p.detach().numpy() for _, block in blocks for p in block]
        sums_up, means_down = (
            sum(sum_KF.numel() * 4 for sum_KF, _ in self.sums[name].values()) if self.baseline.distils else 0,
            sum(row_KF.numel() * 4 for row_KF in device.rows.values()),
        )
        up = sum(encode(part, Codec.INT8, per_channel=True).nbytes for part in parts)
        return float(up + sums_up), float(sum(part.nbytes for part in parts) + means_down)


def options_of(
    baseline: SharingBaseline, setting: DisentAflSetting
) -> tuple[DisentAflConfig, dict[str, float]]:
    """The networks' config and the baseline's own options; see the framework's ``options_of``."""
    own = {**_COMMON, **baseline.options}
    network, options = study.options_of(TITLES[baseline.name], setting.options, _OURS_TOO, own)
    sizes = {name: getattr(setting, name) for name in NETWORK}
    return DisentAflConfig(**sizes, **{**_SHARED_LAST, **network}), options


def run(
    baseline: SharingBaseline, fleet: TargetFleet, setting: DisentAflSetting, seed: int, tell: Say
) -> DisentAflOutcome:
    """One baseline on a fleet: :data:`lichen_lab.benchmarks.study.run_spec.Run` for each of them.

    Raises:
        Misconfigured: the baseline has no such option.
    """
    federation = SharingRun(baseline, fleet, setting, seed)
    personal: Scores = {}

    def play(round_: int) -> float | None:
        nonlocal personal
        federation.train(round_)
        personal = federation.scores() if looks(round_, setting.rounds) else {}
        federation.share()
        return fleet_mean(personal) if personal else None

    by_round = study.play_rounds(setting.rounds, tell, play)
    traffic = {name: federation.traffic(name) for name in federation.devices}
    return DisentAflOutcome(
        personal=personal,
        aggregate=federation.given() if baseline.shares else None,
        newcomer=federation.newcomer() if baseline.shares else None,
        by_round=by_round,
        bytes_up={name: up for name, (up, _) in traffic.items()},
        bytes_down={name: down for name, (_, down) in traffic.items()},
    )
