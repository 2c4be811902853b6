"""``lichen data fetch uci-har``: bring the official archive into the packed form in the cache.

Nothing is kept of a download that is cut, damaged or not the data set: the archive goes into a file without a
name, and the packed form appears whole, by one rename.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from lichen_lab.simulation.data.access import archive
from lichen_lab.simulation.data.access import locations as places
from lichen_lab.simulation.data.access.download import DownloadLimits, download
from lichen_lab.simulation.data.access.split import Part
from lichen_lab.simulation.data.sets import uci_har, uci_har_digests, uci_har_official
from models.tensors import read_arrays
from protocol.errors import Misconfigured, Refused, Transient
from runtime.outputs import writing
from runtime.storage.files import disk_errors, make_folder, remove_tree, rename, sync_folder
from runtime.storage.folder_lock import FolderLock

PAGE: Final = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"
URL: Final = "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"
LIMITS: Final = DownloadLimits(max_bytes=archive.MAX_ARCHIVE)
Say = Callable[[str, int, int | None], None]
"""Called with progress: stage, amount done, amount in all (None: unknown)."""
Parts = dict[Part, dict[str, NDArray[Any]]]
_LOCK: Final = ".fetch.lock"
_STAGING: Final = ".tmp-fetch"
_OLD: Final = ".tmp-replaced"


@dataclass(frozen=True)
class FetchedData:
    """The packed form after a fetch.

    Attributes:
        folder: of the packed form.
        windows: of each part.
        fresh: False if it was there before.
    """

    folder: Path
    windows: dict[Part, int]
    fresh: bool


def fetch_uci_har(
    given: Path | None = None,
    *,
    force: bool = False,
    url: str = URL,
    limits: DownloadLimits = LIMITS,
    say: Say = lambda _what, _done, _all: None,
) -> FetchedData:
    """Bring UCI-HAR here, unless it is here as published.

    Args:
        given: an archive at hand (nested or not) or an unpacked folder; None: it is downloaded.
        force: also where it is here already.
        url: of the archive.
        limits: of the download.
        say: told of progress.

    Raises:
        Misconfigured: another fetch runs; there is no such file, or none on the server; a copy that is asked
            before the cache is not what was published.
        Refused: it is not what was published, is damaged or too large.
        Transient: the network or the server fails; the disk is full.
        NotWritten: the cache is closed to us, or full.
    """
    if not force and (here := _here()) is not None:
        return here
    cache = places.cache_folder()
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
    owner = FolderLock(cache / _LOCK, "lichen data fetch")
    try:
        _sweep(cache)
        with writing(cache), _source(given, url, limits, say, cache) as source:
            parts = uci_har_official.read(source, lambda done: say("reading", done, uci_har_official.FILES))
        uci_har_digests.verify(parts, str(given or url))
        return FetchedData(_keep(cache, parts), _counts(parts), fresh=True)
    finally:
        _sweep(cache)
        owner.close()


def _here() -> FetchedData | None:
    """What is found already, if it is what was published; None where a fetch would be found."""
    for root in places.roots():
        folder = root / uci_har.FOLDER
        if not folder.is_dir():
            continue
        try:
            parts: Parts = {
                part: read_arrays(uci_har.packed(part), "UCI-HAR") for part in uci_har_digests.PARTS
            }
            for part, arrays in parts.items():
                uci_har.check(arrays, str(folder / uci_har.file_name(part)))
            uci_har_digests.verify(parts, str(folder))
        except (Misconfigured, Refused) as error:
            if root == places.cache_folder():
                return None
            raise Misconfigured(
                f"{error}; it is asked before the cache: mend or remove it, or name another folder in "
                f"{places.DATA_VARIABLE}"
            ) from None
        return FetchedData(folder, _counts(parts), fresh=False)
    return None


@contextmanager
def _source(
    given: Path | None, url: str, limits: DownloadLimits, say: Say, cache: Path
) -> Iterator[archive.ArchiveSource]:
    """The published files, at hand or from the network."""
    if given is not None:
        with archive.opened(given, cache, uci_har_official.OWN_FOLDER, uci_har_official.SAMPLE) as source:
            yield source
        return
    say("fetching", 0, None)
    with tempfile.TemporaryFile(dir=cache) as file:  # without a name: removed in any case
        try:
            download(url, file, limits, lambda got, total: say("fetching", got, total))
        except (Misconfigured, Transient) as error:
            words = f"{error}; or fetch it by hand from {PAGE} and give it with --from"
            raise type(error)(words) from None
        file.seek(0)
        with archive.within(file, url, cache, uci_har_official.SAMPLE) as source:
            yield source


def _keep(cache: Path, parts: Parts) -> Path:
    """The packed form, put into place by one rename."""
    staging, folder = cache / _STAGING, cache / uci_har.FOLDER
    with disk_errors(folder):
        make_folder(staging)
        uci_har_digests.write(staging, parts)
        if folder.exists():
            rename(folder, cache / _OLD)
        rename(staging, folder)
        sync_folder(cache)
    return folder


def _sweep(cache: Path) -> None:
    """Remove files of a killed fetch. Only under the lock."""
    for stray in (cache / _STAGING, cache / _OLD):
        remove_tree(stray)


def _counts(parts: Parts) -> dict[Part, int]:
    return {part: len(arrays["y"]) for part, arrays in parts.items()}
