"""The six baselines of the DisentAFL study, after the paper's appendix.

Encoders (without domain experts) and decoders are DisentAFL's, of the same sizes; local epochs, batches,
rounds and the criterion by which each gets a learning rate of its own are the same; every device takes part
in every round. Blocks of the same name and shape begin alike. Means are weighted by windows. A device's Adam
goes on with its moments of the round before (``keep_adam``): beginning anew in each round costs FedAvg
several points where a round is two steps.

Where the appendix leaves a choice, the stronger option is used:

- **Local**: nothing is shared. Every decoder reads all encoded inputs (so too with FedAvg).
- **FedAvg**: all of the network, within the group of devices that read and predict the same.
- **Align-FedAvg**: encoders of a modality and whole decoders of a target over all devices that hold them,
  through one latent vector. Devices that have neither an input nor a target in common distil: each draws the
  mean of its latent vectors towards the mean of the others' (they have no classes in common to do so by).
- **Cross-FedAvg**: beyond the group, encoders without their last layer and decoders without their first,
  among devices with an input and a target in common; which those are, differs from device to device, and so
  does the mean that each gets. "The last layer" of an encoder is the last product and norm; the decoder's
  first is the linear layer that its segments pass. Devices distil the segment of a modality and target by
  class, from all devices that have both.
- **Cross-PFL**: multi-task learning with the mean regulariser of Evgeniou and Pontil, which Smith et al.
  (2017) name as a case of theirs: devices keep networks of their own, which go a share ``pull`` of the way
  to the mean that Cross-FedAvg would give them. It is the regulariser's proximal step; as a term of the
  local loss, Adam would rescale it.
- **FedMSplit** (Chen and Zhang, KDD 2022): blocks as of Align-FedAvg; each device gets a mean of its own of
  every block, weighted by a softmax over how the block correlates with the other devices' (a graph a block,
  with attention along its edges). Its alternating optimisation of graph and networks is one step a round.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.disentafl import federation
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.baselines import sharing
from lichen_lab.benchmarks.studies.disentafl.baselines.loop import SharingBaseline, run
from lichen_lab.benchmarks.studies.disentafl.baselines.network import Aligned, Concatenated, Segmented
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome, DisentAflSetting, TargetFleet
from lichen_lab.benchmarks.study import mixes
from lichen_lab.benchmarks.study.federation import timed_run
from lichen_lab.benchmarks.study.run_spec import Run

DISTIL: Final = 0.1
"""Weight of the distillation. The appendix names 0.8, of DisentAFL-KD: that costs Cross-FedAvg four points on
MERGE-FA (windows and seeds of tuning), and gains the others nothing beyond noise."""

BASELINES: Final[Mapping[str, SharingBaseline]] = {
    v.LOCAL: SharingBaseline(v.LOCAL, Concatenated, sharing.group, lambda _: sharing.own, shares=False),
    v.FEDAVG: SharingBaseline(v.FEDAVG, Concatenated, sharing.group, lambda _: mixes.mean),
    v.CROSS_FEDAVG: SharingBaseline(
        v.CROSS_FEDAVG,
        Segmented,
        sharing.related,
        lambda _: mixes.mean,
        {"distil": DISTIL},
        distils=sharing.everyone,
    ),
    v.ALIGN_FEDAVG: SharingBaseline(
        v.ALIGN_FEDAVG,
        Aligned,
        sharing.everyone,
        lambda _: mixes.mean,
        {"distil": DISTIL},
        distils=sharing.unrelated,
    ),
    v.CROSS_PFL: SharingBaseline(
        v.CROSS_PFL,
        Segmented,
        sharing.related,
        lambda options: sharing.pull(options["pull"]),
        {"distil": DISTIL, "pull": 0.5},
        distils=sharing.everyone,
    ),
    v.FEDMSPLIT: SharingBaseline(
        v.FEDMSPLIT,
        Aligned,
        sharing.everyone,
        lambda options: mixes.attention(options["temperature"]),
        {"distil": DISTIL, "temperature": 0.5},
        distils=sharing.unrelated,
    ),
}
RUNS: Final[Mapping[str, Run[TargetFleet, DisentAflSetting, DisentAflOutcome]]] = {
    v.METHOD: federation.run,
    **{name: timed_run(partial(run, baseline)) for name, baseline in BASELINES.items()},
}
"""Method -> function that runs it on a fleet, the product's too."""
