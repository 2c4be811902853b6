"""Magnitudes of the last round's updates, on disk: small rounds are screened against them."""

import json
from collections.abc import Mapping
from typing import Final

from coordinator.storage.database import Database

_KEY: Final = "screen_reference"


class ScreenBaseline:
    """Part -> median magnitude (``outlier_screen.Screened``), the newest of each part."""

    def __init__(self, store: Database) -> None:
        self._store = store

    def read(self) -> dict[str, float]:
        """Empty before the first round."""
        known: dict[str, float] = json.loads(self._store.get_meta(_KEY) or "{}")
        return known

    def write(self, reference: Mapping[str, float]) -> None:
        """Store this round's; parts that no device sent stay as they are. Joins the caller's transaction."""
        self._store.put_meta({_KEY: json.dumps({**self.read(), **reference}, sort_keys=True)})
