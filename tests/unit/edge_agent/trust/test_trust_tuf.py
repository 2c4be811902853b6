"""python-tuf, the reference implementation of The Update Framework, judges what we sign."""

import datetime as dt

import pytest

from edge_agent.trust.trusted_metadata import TrustedMetadata
from protocol.errors import Refused
from protocol.trust.signing import canonical
from tests.support.identity.trust import DAY_S, NOW, Keys, pointer, release, root, secret

pytest.importorskip("tuf", reason="python-tuf judges our metadata: pip install 'lichen[dev]'")

from securesystemslib.formats import encode_canonical
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.config import EnvelopeType

EXCHANGED = Keys(online={"timestamp": (13,), "snapshot": (14,), "targets": (15,)})


def reference(first):
    judge = TrustedMetadataSet(first, EnvelopeType.METADATA)
    judge.reference_time = dt.datetime.fromtimestamp(NOW, dt.UTC)
    return judge


def test_the_reference_trusts_what_we_sign():
    judge, one = reference(root()), release(1)
    judge.update_root(root(EXCHANGED, 2, by=(1,)))
    one = release(1, keys=EXCHANGED)
    judge.update_timestamp(one.timestamp)
    judge.update_snapshot(one.snapshot)
    targets = judge.update_targets(one.targets)
    ((_, file),) = targets.targets.items()
    file.verify_length_and_hashes(one.bundle)


@pytest.mark.parametrize(
    "steps",
    [
        [("root", root(version=3))],
        [("root", root(EXCHANGED, 2, by=(3,)))],
        [("timestamp", release(1, timestamp=(9,)).timestamp)],
        [("timestamp", release(1, issued=NOW - 30 * DAY_S).timestamp)],
        [("timestamp", release(2).timestamp), ("timestamp", release(1).timestamp)],
        [("timestamp", release(2).timestamp), ("snapshot", release(1).snapshot)],
        [
            ("timestamp", release(1, snapshot=(9,)).timestamp),
            ("snapshot", release(1, snapshot=(9,)).snapshot),
        ],
        [
            ("timestamp", release(2).timestamp),
            ("snapshot", release(2).snapshot),
            ("targets", release(1).targets),
        ],
    ],
)
def test_the_reference_refuses_what_we_refuse(steps):
    judge, ours = reference(root()), TrustedMetadata.begin(root())
    for role, data in steps[:-1]:
        getattr(judge, f"update_{role}")(data)
        ours = getattr(ours, f"with_{role}")(data, NOW)
    role, data = steps[-1]
    with pytest.raises(RepositoryError):
        getattr(judge, f"update_{role}")(data)
    with pytest.raises(Refused):
        getattr(ours, f"with_{role}")(*((data,) if role == "root" else (data, NOW)))


def test_we_trust_what_the_reference_signs():
    bundle, until = b"from another tool", dt.datetime.fromtimestamp(NOW + 7 * DAY_S, dt.UTC)
    signer = CryptoSigner(secret(21))
    roots = Root(expires=until)
    for role in ("root", "timestamp", "snapshot", "targets"):
        roots.add_key(signer.public_key, role)
    file = TargetFile.from_data("toy/1/b.bundle", bundle, ["sha256"])
    file.unrecognized_fields["custom"] = {"task": "toy", "version": 1}
    targets = Metadata(Targets(expires=until, targets={"toy/1/b.bundle": file}))
    data = {"targets": made(targets, signer)}
    snapshot = Snapshot(
        expires=until, meta={"targets.json": MetaFile.from_data(1, data["targets"], ["sha256"])}
    )
    data["snapshot"] = made(Metadata(snapshot), signer)
    stamp = Timestamp(expires=until, snapshot_meta=MetaFile.from_data(1, data["snapshot"], ["sha256"]))
    data["timestamp"] = made(Metadata(stamp), signer)
    trusted = TrustedMetadata.begin(made(Metadata(roots), signer)).with_timestamp(data["timestamp"], NOW)
    trusted = trusted.with_snapshot(data["snapshot"], NOW).with_targets(data["targets"], NOW)
    trusted.require(pointer(bundle), NOW)


def made(metadata, signer):
    metadata.sign(signer)
    return metadata.to_bytes()


@pytest.mark.parametrize(
    "value",
    [{}, {"b": [1, -2, True, False, None], "a": {"ü": 'q"\\u'}}, [], "x\ty", {"é": 1, "e": 2, "Z": 3}],
)
def test_the_canonical_form_is_the_reference_s(value):
    assert canonical(value) == encode_canonical(value).encode()
