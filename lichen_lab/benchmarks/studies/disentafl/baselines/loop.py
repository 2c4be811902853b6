"""Training loop of all baselines: in each round all devices train, then share. Imports torch.

Local training, batches and losses are DisentAFL's without the auxiliary losses. Nothing is quantized, and
all training windows of a device train: none are held out to choose domains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.disentafl.baselines import distil
from lichen_lab.benchmarks.studies.disentafl.baselines.device import BaselineDevice
from lichen_lab.benchmarks.studies.disentafl.baselines.network import BaselineNetwork
from lichen_lab.benchmarks.studies.disentafl.baselines.sharing import Linked, Mix, mixed
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
from models.contract import Profile
from models.methods.disentafl import DisentAflConfig
from models.seeds import derive_seed
from protocol.frames.tensors import Codec, encode
from protocol.tasks.task import Task

_OURS_TOO: Final = ("tokens", "layers", "heads", "lr_decay", "weight_decay")
"""Options of encoders and training that mean the same to DisentAFL."""
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
        config, self.options = options_of(baseline, setting)
        self.baseline, self.fleet, self.seed = baseline, fleet, seed
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
        held = {name: device.held() for name, device in self.devices.items()}
        made = mixed(held, self.profiles, self.weights, self.baseline.linked, self.mix)
        for name, blocks in made.items():
            self.devices[name].take(blocks)
        if self.baseline.distils is not None:
            means = distil.exchanged(self.sums, self.profiles, self.baseline.distils)
            for name, rows in means.items():
                self.devices[name].rows = rows

    def scores(self) -> Scores:
        """Scores of the devices' current networks."""
        return {
            name: score(self.fleet, device.member, device.outputs()) for name, device in self.devices.items()
        }

    def traffic(self, name: str) -> tuple[float, float]:
        """Bytes up and down of a device in a round: shared blocks and mean features.

        Up in the study's codec, as for DisentAFL, down in float32; without names and headers.
        """
        if not self.baseline.shares:
            return 0.0, 0.0
        device = self.devices[name]
        parts = [p.detach().numpy() for block in device.blocks.values() for p in block]
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
    return DisentAflConfig(**{name: getattr(setting, name) for name in NETWORK}, **network), options


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
        aggregate=federation.scores() if baseline.shares else None,
        by_round=by_round,
        bytes_up={name: up for name, (up, _) in traffic.items()},
        bytes_down={name: down for name, (_, down) in traffic.items()},
    )
