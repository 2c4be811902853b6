"""A bad model that no gate before the device detects: the newest version with shuffled weights.

Shapes, types and sizes are the network's, every number is finite, graph and torch agree on it.
"""

from pathlib import Path

import numpy as np

from export.cli import read_manifest, read_state
from models.contract import Blobs
from models.registry import method
from protocol import messages
from protocol.frames.frame import encode_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec, encode
from runtime.storage.blob_store import BlobStore
from runtime.storage.files import write_atomic


def shuffled(state: Blobs, seed: int) -> Blobs:
    """The same numbers in every tensor, in another order."""
    draw = np.random.default_rng(seed)
    return {
        blob: {
            name: draw.permutation(values.reshape(-1)).reshape(values.shape)
            for name, values in sorted(tensors.items())
        }
        for blob, tensors in sorted(state.items())
    }


def spoil(blobs: Path, newest: str, folder: Path, seed: int) -> tuple[Path, Path, int]:
    """Write a bad version that follows the newest one.

    Args:
        blobs: the coordinator's store; only read.
        newest: the digest of the newest version's manifest.
        folder: where manifest and blobs of the bad version are written.
        seed: of the order.

    Returns:
        Its manifest, the folder of its blobs, and its number: the arguments of ``lichen export``.

    Raises:
        Misconfigured, Refused: the newest version cannot be read.
    """
    manifest, parent = read_manifest(blobs / newest[:2] / newest)
    state = shuffled(read_state(manifest, blobs), seed)
    codecs = method(manifest.method).codecs
    store = BlobStore(folder / "blobs")
    refs = {
        blob: store.put(
            encode_frame(
                BlobHeader(name=blob),
                {
                    name: encode(values, codecs.get(name.rsplit("/", 1)[-1], Codec.FLOAT32))
                    for name, values in tensors.items()
                },
            )
        )
        for blob, tensors in state.items()
    }
    spoilt = Manifest(
        task=manifest.task,
        method=manifest.method,
        version=manifest.version + 1,
        parent=parent,
        blobs=refs,
    )
    path = folder / "manifest.json"
    write_atomic(path, messages.encode(spoilt))
    return path, folder / "blobs", spoilt.version
