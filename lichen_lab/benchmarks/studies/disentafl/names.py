"""The study's methods: their names in commands and files, and their titles in tables. Torch-free."""

from collections.abc import Mapping
from typing import Final

OURS: Final = "disentafl"
"""The product's method; all others are baselines."""
LOCAL: Final = "local"
FEDAVG: Final = "fedavg"
CROSS_FEDAVG: Final = "cross_fedavg"
ALIGN_FEDAVG: Final = "align_fedavg"
CROSS_PFL: Final = "cross_pfl"
FEDMSPLIT: Final = "fedmsplit"
TITLES: Final[Mapping[str, str]] = {
    LOCAL: "Local",
    FEDAVG: "FedAvg (per group)",
    CROSS_FEDAVG: "Cross-FedAvg",
    ALIGN_FEDAVG: "Align-FedAvg",
    CROSS_PFL: "Cross-PFL",
    FEDMSPLIT: "FedMSplit",
}
"""Of the baselines."""
AVG: Final = "DisentAFL-Avg"
KD: Final = "DisentAFL-KD"
