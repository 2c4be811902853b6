"""Searches all traffic at the broker for data that must not leave a gateway. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from lichen_lab.demo.core.traffic import TrafficCounter
from lichen_lab.demo.plans.mmfed3_hide.results import SearchOutcome
from models.contract import FloatArray
from models.knowledge_graph.data.keys import ENTITIES, RELATIONS, key
from protocol.errors import Refused
from protocol.topics import parse

SHORTEST: Final = 10
"""Least letters of a name to search for: shorter ones are parts of ordinary words in messages."""
_ROW: Final = 8
"""Numbers of a feature row to search for."""


class Searcher(TrafficCounter):
    """A traffic counter that keeps all payloads, chunks of one blob together."""

    def __init__(self, fleet: str) -> None:
        super().__init__(fleet)
        self._fleet_root = f"lichen/v1/{fleet}"
        self._heard: list[bytes] = []
        self._chunks: dict[tuple[str | None, str], dict[int, bytes]] = defaultdict(dict)
        self.messages = 0

    def filters(self) -> tuple[tuple[str, int], ...]:
        """All of the fleet's topics."""
        return ((f"{self._fleet_root}/#", 0),)

    def apply(self, topic: str, payload: bytes) -> None:
        """Take one message."""
        super().apply(topic, payload)
        self.messages += 1
        try:
            route = parse(topic)
        except Refused:
            self._heard.append(payload)
            return
        if route.digest is None or route.index is None:
            self._heard.append(payload)
        else:
            self._chunks[route.device, route.digest][route.index] = payload

    def texts(self) -> list[bytes]:
        """All payloads once: messages, and reassembled blobs."""
        whole = [b"".join(chunks[n] for n in sorted(chunks)) for chunks in self._chunks.values()]
        return [*self._heard, *whole]


Secrets = Mapping[str, Mapping[str, tuple[bytes, ...]]]
"""Kind -> name -> byte strings of which none may occur."""


def secrets(
    secret: bytes, entities: Iterable[str], relations: Iterable[str], rows: Mapping[str, FloatArray]
) -> Secrets:
    """The byte strings to search for.

    Args:
        secret: the fleet's.
        entities: names.
        relations: names.
        rows: name -> a row of features, as it lies on a device.
    """
    named, keyed = [*entities, *relations], {*relations}
    return {
        "names": {name: (name.encode(),) for name in named if len(name) >= SHORTEST},
        "relation keys": {name: (key(secret, name, RELATIONS),) for name in keyed},
        "rows of features": {
            name: (row[:_ROW].astype("<f4").tobytes(), row[:_ROW].astype("<f2").tobytes())
            for name, row in rows.items()
            if np.any(row[:_ROW])
        },
        "the secret": {"the fleet's secret": (secret,)},
    }


def search(texts: Iterable[bytes], sought: Secrets) -> tuple[str, ...]:
    """Kinds and names of the secrets that occur."""
    found = set()
    for text in texts:
        for kind, named in sought.items():
            found |= {(kind, name) for name, forms in named.items() if any(form in text for form in forms)}
    return tuple(f"{kind}: {name}" for kind, name in sorted(found))


def search_outcome(
    searcher: Searcher, sought: Secrets, secret: bytes, entities: Iterable[str]
) -> SearchOutcome:
    """The outcome; entity keys, which may travel, show that the search finds what is there."""
    texts = searcher.texts()
    keys = {name: (key(secret, name, ENTITIES),) for name in entities}
    return SearchOutcome(
        bytes=sum(map(len, texts)),
        messages=searcher.messages,
        sought={kind: len(named) for kind, named in sought.items()},
        found=search(texts, sought),
        keys=len(search(texts, {"entity keys": keys})),
    )
