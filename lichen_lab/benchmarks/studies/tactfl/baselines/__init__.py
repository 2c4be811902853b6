"""The baselines of the TACTFL study: no labels on devices, some at the coordinator.

All have TACTFL's network, initial values, rounds, batches, local epochs and Adam on the devices; after a
round the coordinator trains with the product's own code. Where the papers leave open how they learn without
labels, the stronger option is used:

- **random encoders**: nothing is trained but the head, in every round; BatchNorm statistics are measured on
  the labelled windows once, without which the features of fresh encoders tell little. This is TACTFL without
  contrast; its fine-tuned end is trained further as TACTFL's is.
- **labelled only**: the fresh network, encoders and head together on the labelled windows (``tune_epochs``).
- **FedAvg**, after McMahan et al. (2017): before round 1 the coordinator trains the whole model on its
  windows. Then, in each round, a device takes the global model's predictions for labels where the model is
  confident (``confidence``), and trains the whole model on those windows; the means are weighted by how many
  there were; and the coordinator trains the whole model again. So do Diao et al. (SemiFL, 2022) alternate.
- **FedOpt**, after Reddi et al. (2020): the same; the mean update is a gradient for Adam at the coordinator.
- **FedProx**, after Li et al. (2020): the same, with ``prox / 2`` times the squared distance from the global
  model in the device's loss.
- **MOON**, after Li et al. (2021): the same, with ``moon`` times the model-contrastive loss: the feature of a
  window is drawn to that of the global model, and away from that of the device's last model.
- **FPL**, after Huang et al. (2023): the same, and devices share the mean features of their confident
  classes. The coordinator clusters those of a class; a window's feature is drawn to the clusters of its
  class, away from others, and to the mean of the clusters of its class.
- **FedMSplit**, after Chen and Zhang (2022): every device continues from a mean of its own, weighted by how
  its encoders and its head correlate with the others'; the coordinator, with its labels, is one of them, and
  its mean is the version.
- **autoencoder**, after Zhao et al. (FedIoT, 2022): each modality's encoder, with a decoder of two layers,
  learns to reconstruct its windows; both are averaged, weighted by windows; the coordinator trains the head.
  Its fine-tuned end is trained further as TACTFL's is.

A baseline whose coordinator trains the whole model in every round passes over the labelled windows as often
in all, end to end, as a fine-tuned end does (``tune_epochs``), and ``warm_epochs`` times more before round 1.
Nothing is quantized on the way, and no update is screened.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.tactfl import federation
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.baselines import split
from lichen_lab.benchmarks.studies.tactfl.baselines.autoencoder import AutoencoderReconstruction
from lichen_lab.benchmarks.studies.tactfl.baselines.loop import LabelledBaseline, labelled_only, run
from lichen_lab.benchmarks.studies.tactfl.baselines.prototypes import PrototypeLabels
from lichen_lab.benchmarks.studies.tactfl.baselines.pseudo import PseudoLabels
from lichen_lab.benchmarks.studies.tactfl.settings import TactflOutcome, TactflSetting, UnlabelledFleet
from lichen_lab.benchmarks.study.federation import timed_run
from lichen_lab.benchmarks.study.run_spec import Run

_PSEUDO: Final[Mapping[str, float]] = {"confidence": 0.9, "warm_epochs": 10.0}
_SERVER: Final[Mapping[str, float]] = {"server_lr": 0.003, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}

BASELINES: Final[Mapping[str, LabelledBaseline]] = {
    v.RANDOM: LabelledBaseline(v.RANDOM),
    v.FEDAVG: LabelledBaseline(v.FEDAVG, PseudoLabels, _PSEUDO, whole=True),
    v.FEDOPT: LabelledBaseline(v.FEDOPT, PseudoLabels, {**_PSEUDO, **_SERVER}, whole=True, adaptive=True),
    v.FEDPROX: LabelledBaseline(v.FEDPROX, PseudoLabels, {**_PSEUDO, "prox": 0.01}, whole=True),
    v.MOON: LabelledBaseline(v.MOON, PseudoLabels, {**_PSEUDO, "moon": 1.0, "moon_tau": 0.5}, whole=True),
    v.FPL: LabelledBaseline(v.FPL, PrototypeLabels, {**_PSEUDO, "fpl": 1.0, "fpl_tau": 0.02}, whole=True),
    v.FEDMSPLIT: LabelledBaseline(v.FEDMSPLIT, PseudoLabels, {**_PSEUDO, "temperature": 0.5}, whole=True),
    v.AUTOENCODER: LabelledBaseline(v.AUTOENCODER, AutoencoderReconstruction, {"decoder_dim": 64.0}),
}
RUNS: Final[Mapping[str, Run[UnlabelledFleet, TactflSetting, TactflOutcome]]] = {
    v.METHOD: federation.run,
    v.LABELLED: labelled_only,
    **{
        name: timed_run(partial(split.run if name == v.FEDMSPLIT else run, baseline))
        for name, baseline in BASELINES.items()
    },
}
"""Method -> function that runs it on a fleet, the product's too."""
