"""Values as text for pages: times, sizes, numbers."""

import datetime as dt
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from runtime.waits import span

_METRICS: Final = {"macro_f1": "macro F1", "mrr": "MRR"}
MISSING: Final = "\N{EN DASH}"


def size(count: float | None) -> str:
    """Bytes with their unit."""
    if count is None:
        return MISSING
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash."""
    if value is None:
        return MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def moment(wall: float | None) -> str:
    """A time in UTC, as an element that has it for programs, too."""
    if wall is None:
        return MISSING
    at = dt.datetime.fromtimestamp(wall, dt.UTC)
    return Markup('<time datetime="{}" data-at="{:.0f}">{}</time>').format(
        at.isoformat(timespec="seconds"), wall, at.strftime("%Y-%m-%d %H:%M:%S")
    )


def ago(wall: float | None) -> str:
    """How long ago, or in how long; the page counts on."""
    if wall is None:
        return MISSING
    at, now = dt.datetime.fromtimestamp(wall, dt.UTC), time.time()
    words = f"in {span(wall - now)}" if wall > now else f"{span(now - wall)} ago"
    return Markup('<time datetime="{}" data-at="{:.0f}" data-rel title="{}">{}</time>').format(
        at.isoformat(timespec="seconds"), wall, at.strftime("%Y-%m-%d %H:%M:%S UTC"), words
    )


def digest(*values: object) -> str:
    """A short text that changes with the values."""
    return hashlib.sha256(repr(values).encode(errors="replace")).hexdigest()[:12]


def metric(name: str) -> str:
    """The name of a metric as text; of a target it is ``target/metric``."""
    target, slash, short = name.rpartition("/")
    words = _METRICS.get(short) or short.replace("_", " ")
    return f"{target}: {words}" if slash else words[:1].upper() + words[1:]


def segment(text: str) -> str:
    """A text as one segment of a path."""
    return quote(text, safe="")


def share(value: float | None) -> str:
    """A share of 1 in percent."""
    return MISSING if value is None else f"{100 * value:.0f} %"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "ago": ago,
    "digest": digest,
    "metric": metric,
    "moment": moment,
    "number": number,
    "segment": segment,
    "share": share,
    "size": size,
    "span": span,
}
