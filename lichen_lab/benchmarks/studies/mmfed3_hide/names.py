"""The study's methods: their titles in tables, and their places in the matrix. Torch-free."""

from collections.abc import Mapping
from itertools import product
from typing import Final

FEDE: Final = "FedE"
S_IND: Final = "S-Ind"
MM_IND: Final = "MMInd"
MM_CEN: Final = "MMCen"
MMFEDE: Final = "MMFedE"
MMFEDEC: Final = "MMFedEC"
MMFEDPROX: Final = "MMFedProx"
MMFEDLU: Final = "MMFedLU"
MMFED3: Final = "MMFeD3"
FLEETS: Final = (MMFEDE, MMFEDEC, MMFEDPROX, MMFEDLU, MMFED3)
"""Ways to learn as a fleet that read features; :data:`FEDE` reads none, so no imputer changes it."""

NONE: Final = "none"
IMPUTERS: Final[Mapping[str, str]] = {
    NONE: "nothing",
    "ae": "AE",
    "cra": "CRA",
    "mmin": "MMIN",
    "hide": "HidE",
}
"""Replacement of missing features -> its title."""


def titled(fleet: str, imputer: str = NONE) -> str:
    """Title of a way to learn and an imputer, in the paper's form."""
    return fleet if imputer == NONE else f"{fleet}-{IMPUTERS[imputer]}"


OURS: Final = titled(MMFED3, "hide")
MMFEDE_HIDE: Final = titled(MMFEDE, "hide")
BOUNDS: Final = (S_IND, MM_IND, MM_CEN)
MATRIX: Final[Mapping[str, tuple[str, str]]] = {
    FEDE: (FEDE, NONE),
    **{titled(fleet, imputer): (fleet, imputer) for fleet, imputer in product(FLEETS, IMPUTERS)},
}
"""Title -> its row and column in the matrix: a way to learn and a replacement of missing features."""
PLACES: Final = {**MATRIX, **{title: (title, NONE) for title in BOUNDS}}
"""The same for all methods."""
