"""Downloads of bundles: few at a time, also if many are asked for at the same moment."""

import asyncio
import gc
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.tables.bundle_files import PART_BYTES, BundleFiles
from coordinator.objects.blobs import key_of
from protocol.errors import Refused, Transient
from tests.support.coordinator.fake import settings_for
from tests.support.services import until

DATA = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(DATA).hexdigest()


def files(folder: Path, data: bytes = DATA) -> BundleFiles:
    settings = settings_for(folder, 1)
    path = settings.state_dir / key_of(DIGEST)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return BundleFiles(settings)


# It collects the garbage of other tests, too: what those left open is not this one's fault.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_of_many_downloads_at_once_few_begin_and_one_that_nobody_reads_gives_its_place_back(
    tmp_path: Path,
) -> None:
    bundles = files(tmp_path)
    opened = await asyncio.gather(
        *(bundles.open(DIGEST, len(DATA)) for _ in range(9)), return_exceptions=True
    )
    refused = [one for one in opened if isinstance(one, Refused)]
    assert len(refused) == 5
    assert "are being downloaded now" in refused[0].detail
    begun = [one for one in opened if not isinstance(one, BaseException)]
    assert b"".join([part async for part in begun[0]]) == DATA
    opened = begun = []
    gc.collect()
    await until(lambda: bundles._running == 0)
    assert len([await bundles.open(DIGEST, len(DATA)) for _ in range(4)]) == 4


async def _read(parts: AsyncIterator[bytes]) -> None:
    async for part in parts:
        assert len(part) <= PART_BYTES


async def test_a_bundle_of_other_bytes_says_so_and_gives_its_place_back(tmp_path: Path) -> None:
    bundles = files(tmp_path, b"x" + DATA[1:])
    for _ in range(6):
        parts = await bundles.open(DIGEST, len(DATA))
        with pytest.raises(Transient, match="other bytes"):
            await _read(parts)
