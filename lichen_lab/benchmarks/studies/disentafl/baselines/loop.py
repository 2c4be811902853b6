"""The one training loop of all baselines: rounds in which every device trains, then shares. Imports torch.

A round's local training, its batches and its losses are DisentAFL's, without the auxiliary ones. Nothing is
quantized on the way, and all of a device's training windows train: none are set aside to judge domains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.disentafl.baselines import distil
from lichen_lab.benchmarks.studies.disentafl.baselines.device import BaselineDevice
from lichen_lab.benchmarks.studies.disentafl.baselines.network import BaselineNetwork
from lichen_lab.benchmarks.studies.disentafl.baselines.sharing import Linked, Mix, mixed
from lichen_lab.benchmarks.studies.disentafl.names import TITLES
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
from lichen_lab.benchmarks.study import federation as study
from models.contract import Profile
from models.methods.disentafl import DisentAflConfig
from models.seeds import derive_seed
from protocol.frames.tensors import Codec, encode
from protocol.tasks.task import Task

_OURS_TOO: Final = ("tokens", "layers", "heads", "lr_decay", "weight_decay")
"""Options of the encoders and of their training that mean the same to DisentAFL."""
_COMMON: Final[Mapping[str, float]] = {"keep_adam": True}
"""Options of every baseline. ``keep_adam``: a device's Adam goes on with the last round's moments."""


@dataclass(frozen=True)
class SharingBaseline:
    """What makes one of them.

    Attributes:
        name: of :mod:`lichen_lab.benchmarks.studies.disentafl.names`.
        network: of a device.
        linked: which devices share a block.
        mix: from options, what becomes of a block of linked devices.
        options: of the method, with their defaults.
        distils: which devices tell each other mean features of a segment; None: nobody.
        shares: whether anything leaves a device.
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
        """Every device, for a round."""
        weight, keep = self.options.get("distil", 0.0), bool(self.options["keep_adam"])
        self.sums = {
            name: device.train(round_, derive_seed(self.seed, name, round_), weight, keep_adam=keep)
            for name, device in self.devices.items()
        }

    def share(self) -> None:
        """Every device goes on from what the fleet makes of all."""
        if not self.baseline.shares:
            return
        held = {name: device.held() for name, device in self.devices.items()}
        made = mixed(held, self.profiles, self.weights, self.baseline.linked, self.mix)
        for name, blocks in made.items():
            self.devices[name].take(blocks)
        if self.baseline.distils is not None:
            told = distil.exchanged(self.sums, self.profiles, self.baseline.distils)
            for name, rows in told.items():
                self.devices[name].rows = rows

    def scores(self) -> Scores:
        """Of what the devices hold now."""
        return {
            name: score(self.fleet, device.member, device.outputs()) for name, device in self.devices.items()
        }

    def traffic(self, name: str) -> tuple[float, float]:
        """Bytes up and down of a device in a round: the blocks that it shares, and mean features.

        Up in the study's codec, as DisentAFL's, down in float32; names and headers aside.
        """
        if not self.baseline.shares:
            return 0.0, 0.0
        device = self.devices[name]
        parts = [p.detach().numpy() for block in device.blocks.values() for p in block]
        told, heard = (
            sum(sum_KF.numel() * 4 for sum_KF, _ in self.sums[name].values()) if self.baseline.distils else 0,
            sum(row_KF.numel() * 4 for row_KF in device.rows.values()),
        )
        up = sum(encode(part, Codec.INT8, per_channel=True).nbytes for part in parts)
        return float(up + told), float(sum(part.nbytes for part in parts) + heard)


def options_of(
    baseline: SharingBaseline, setting: DisentAflSetting
) -> tuple[DisentAflConfig, dict[str, float]]:
    """Sizes and training of the networks, and the method's own options; see the study's."""
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
