"""The study's methods: their names in commands and files, and their titles in tables. Torch-free."""

from collections.abc import Mapping
from typing import Final

OURS: Final = "tactfl"
"""The product's method; all others are baselines."""
RANDOM: Final = "random"
LABELLED: Final = "labelled"
AUTOENCODER: Final = "autoencoder"
FEDAVG: Final = "fedavg"
FEDOPT: Final = "fedopt"
FEDPROX: Final = "fedprox"
MOON: Final = "moon"
BASELINES: Final[Mapping[str, str]] = {
    RANDOM: "random encoders",
    LABELLED: "labelled only",
    FEDAVG: "FedAvg",
    FEDOPT: "FedOpt",
    FEDPROX: "FedProx",
    MOON: "MOON",
    AUTOENCODER: "autoencoder (FedIoT)",
}
"""Title of each."""
LABELLED_ONLY: Final = BASELINES[LABELLED]

TACTFL: Final = "TACTFL"
TACTFL_PLAIN: Final = "TACTFL, the paper's pieces alone"
TACTFL_PLAIN_TUNED: Final = "TACTFL, the paper's pieces alone, fine-tuned"
TACTFL_TUNED: Final = "TACTFL, fine-tuned"
TACTFL_SHORTER_TUNED: Final = "TACTFL, segments of .7, fine-tuned"
AUTOENCODER_TUNED: Final = "autoencoder, fine-tuned"
NO_SIMILARITY: Final = "TACTFL without similarity weights"
NO_SIMILARITY_TUNED: Final = "TACTFL without similarity weights, fine-tuned"
NO_CONTRAST_TUNED: Final = "TACTFL without contrast, fine-tuned"
