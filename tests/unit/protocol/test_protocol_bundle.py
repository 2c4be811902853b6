"""Bundles: the same bytes for the same content, and nothing unlisted gets out of one."""

import io
import zipfile

import pytest

from protocol.bundle import MAX_FILES, BundleManifest, Variant, pack, unpack
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import MAX_MESSAGE_BYTES
from protocol.tasks.task import Modality, Target, Window

MANIFEST = BundleManifest(
    task="gestures",
    method="qqr",
    version=10,
    labels=("rest", "wave"),
    modalities=(Modality(name="accelerometer", channels=3, rate_hz=50, unit="m/s2"),),
    window=Window(),
    samples={"accelerometer": 128},
    inputs=("accelerometer", "present"),
    outputs=("probabilities", "logits"),
    round=10,
    base="ab" * 32,
    parent="cd" * 32,
    metrics={"accuracy": 0.875},
    parity={"largest_difference": 1e-6, "batches": [1, 7]},
)
FILES = {"model.onnx": bytes(range(256)) * 20, "labels.txt": b"rest\nwave\n", "empty": b""}


def rewritten(change, compression=zipfile.ZIP_STORED):
    """The bundle's entries, changed, as another archive."""
    with zipfile.ZipFile(io.BytesIO(pack(MANIFEST, FILES))) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


def refused(data, **limits):
    with pytest.raises(Refused) as caught:
        unpack(data, **limits)
    return caught.value


def test_what_was_packed_comes_out():
    manifest, files = unpack(pack(MANIFEST, FILES))
    assert files == FILES
    assert {name: ref.size for name, ref in manifest.files.items()} == {k: len(v) for k, v in FILES.items()}
    assert manifest.model_copy(update={"files": {}}) == MANIFEST


def test_a_bundle_that_predicts_label_alone_has_the_bytes_it_always_had():
    """What bundles of several targets say besides is not there; fleets know such a bundle by its digest."""
    assert digest(pack(MANIFEST, FILES)) == "1727f7fc4a63dd822e8f9945c2a957e5606cd8d774e81c2c8e52b9d6d6c342c9"
    assert MANIFEST.predicted == (Target(name="label", labels=("rest", "wave")),)


def test_what_is_generated_comes_out_too():
    camera = Modality(name="camera", channels=1, rate_hz=4, input=False)
    targets = (Target(name="picture", kind="generation", modality="camera"),)
    more = MANIFEST.model_copy(update={"targets": targets, "generated": (camera,)})
    found, _ = unpack(pack(more, FILES))
    assert (found.predicted, found.generated) == (targets, (camera,))


INT8 = Variant(file="model.int8.onnx", precision="int8", measured={"agreement": 0.995, "windows": 64.0})


def test_variants_come_out_with_what_was_measured_of_them():
    more = MANIFEST.model_copy(update={"variants": {"int8": INT8}})
    found, files = unpack(pack(more, {**FILES, "model.int8.onnx": b"smaller"}))
    assert found.variants == {"int8": INT8}
    assert files["model.int8.onnx"] == b"smaller"
    assert MANIFEST.variants is None


@pytest.mark.parametrize(
    ("old", "new", "culprit"),
    [
        (b'"model.int8.onnx"', b'"../model.onnx"', "variants.int8.file"),
        (b'"precision": "int8"', b'"precision": 4', "variants.int8.precision"),
        (b"0.995", b'"good"', "variants.int8.measured.agreement"),
        (b"64.0", b"1e999", "variants.int8.measured.windows"),
    ],
)
def test_a_variant_of_another_kind_is_refused_by_its_field(old, new, culprit):
    more = MANIFEST.model_copy(update={"variants": {"int8": INT8}})
    with zipfile.ZipFile(io.BytesIO(pack(more, FILES))) as archive:
        manifest = archive.read("manifest.json")
    assert manifest.count(old) == 1
    error = refused(rewritten(lambda entries: entries.update({"manifest.json": manifest.replace(old, new)})))
    assert error.reason is Reason.MALFORMED
    assert culprit in error.detail


def test_the_same_content_gives_the_same_bytes():
    assert pack(MANIFEST, FILES) == pack(MANIFEST, dict(reversed(FILES.items())))


def test_the_manifest_comes_first_and_all_is_stored():
    with zipfile.ZipFile(io.BytesIO(pack(MANIFEST, FILES))) as archive:
        infos = archive.infolist()
    assert infos[0].filename == "manifest.json"
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("name", ["manifest.json", "../model.onnx", "a/b", "", ".hidden", "a" * 65, "a\n"])
def test_a_file_that_is_no_plain_name_is_not_packed(name):
    with pytest.raises(ValueError, match="plain names"):
        pack(MANIFEST, {name: b""})


def test_too_many_files_are_not_packed():
    with pytest.raises(ValueError, match=f"at most {MAX_FILES} files"):
        pack(MANIFEST, {f"f{i}": b"" for i in range(MAX_FILES + 1)})


def test_more_files_than_may_be_packed_are_refused():
    for number, reason in ((MAX_FILES, Reason.MALFORMED), (MAX_FILES + 1, Reason.TOO_LARGE)):
        more = {f"f{i}": b"" for i in range(number - len(FILES))}
        assert refused(rewritten(lambda entries, more=more: entries.update(more))).reason is reason


def test_a_changed_file_is_refused_by_name():
    error = refused(rewritten(lambda entries: entries.update({"labels.txt": b"wave\nrest\n"})))
    assert error.reason is Reason.WRONG_DIGEST
    assert "'labels.txt'" in error.detail


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        (lambda entries: entries.pop("model.onnx"), "model.onnx"),
        (lambda entries: entries.update({"extra.so": b"x"}), "extra.so"),
        (lambda entries: entries.update({"empty": b"not"}), "empty"),
        (lambda entries: entries.update({"../../etc/passwd": b"x"}), "../../etc/passwd"),
        (lambda entries: entries.update({"a/b": b"x"}), "a/b"),
        (lambda entries: entries.pop("manifest.json"), "manifest.json"),
        (lambda entries: entries.update({"manifest.json": b"{}"}), "manifest.json.task"),
        (lambda entries: entries.update({"manifest.json": b"\xff"}), "manifest.json"),
        (lambda entries: entries.update({"manifest.json": b" " * (MAX_MESSAGE_BYTES + 1)}), "manifest.json"),
    ],
)
def test_a_bundle_that_differs_from_its_manifest_is_refused(change, culprit):
    error = refused(rewritten(change))
    assert error.reason is Reason.MALFORMED
    assert culprit in error.detail


def test_compressed_entries_are_refused_before_they_are_read():
    error = refused(rewritten(lambda entries: entries.update({"bomb": bytes(1 << 20)}), zipfile.ZIP_DEFLATED))
    assert "compressed" in error.detail


def test_a_name_given_twice_is_refused():
    out = io.BytesIO(pack(MANIFEST, FILES))
    with zipfile.ZipFile(out, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("labels.txt", b"wave\n")
    assert "named twice" in refused(out.getvalue()).detail


def test_entries_that_claim_more_than_the_archive_has_are_refused():
    data = bytearray(pack(MANIFEST, FILES))
    # The central directory's sizes of model.onnx: both say 1 GiB.
    at = data.rindex(b"model.onnx") - 46 + 20
    data[at : at + 8] = (1 << 30).to_bytes(4, "little") * 2
    assert refused(bytes(data)).reason is Reason.TOO_LARGE


def test_size_is_bounded_first():
    data = pack(MANIFEST, FILES)
    assert refused(data, max_bytes=len(data) - 1).reason is Reason.TOO_LARGE
    assert unpack(data, max_bytes=len(data))


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"\0" * 100, pack(MANIFEST, FILES)[:-1], pack(MANIFEST, FILES)[:300]]
)
def test_what_is_no_archive_is_refused(data):
    assert refused(data).reason is Reason.MALFORMED


def test_another_format_is_refused():
    def next_format(entries):
        entries["manifest.json"] = entries["manifest.json"].replace(b'"format": 1', b'"format": 2')

    assert "manifest.json.format" in refused(rewritten(next_format)).detail
