"""Where data sets are looked for, and what is said where they are not."""

from pathlib import Path

import pytest

from lichen_lab.simulation.data.access import locations
from protocol.errors import Misconfigured


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The three places, empty."""
    named, beside, cache = tmp_path / "named", tmp_path / "shared", tmp_path / "cache" / "lichen" / "data"
    for folder in (named, beside, cache):
        folder.mkdir(parents=True)
    monkeypatch.setenv("LICHEN_DATA", str(named))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(locations, "beside_checkout", lambda: beside)
    return {"named": named, "beside": beside, "cache": cache}


def test_the_named_folder_goes_first_then_the_one_beside_then_the_cache(three: dict[str, Path]) -> None:
    for place in ("cache", "beside", "named"):
        (three[place] / "uci_har").mkdir()
        assert locations.folder("uci_har") == three[place] / "uci_har"


@pytest.mark.usefixtures("three")
def test_a_set_that_is_nowhere_is_said_with_what_brings_it() -> None:
    with pytest.raises(Misconfigured, match=r"uci_har is not here: lichen data fetch uci-har .* LICHEN_DATA"):
        locations.folder("uci_har")
    with pytest.raises(Misconfigured, match="mnist is not here: name the folder") as said:
        locations.folder("mnist")
    assert "fetch" not in str(said.value)


def test_a_named_folder_that_is_not_there_is_no_missing_data_set(
    three: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (three["cache"] / "uci_har").mkdir()
    monkeypatch.setenv("LICHEN_DATA", "/not/there")
    with pytest.raises(Misconfigured, match=r"LICHEN_DATA=/not/there: there is no such folder"):
        locations.folder("uci_har")


def test_a_folder_without_the_file_names_the_file(three: dict[str, Path]) -> None:
    (three["named"] / "mnist").mkdir()
    with pytest.raises(Misconfigured, match=r"named/mnist: it has no a\.gz or a"):
        locations.file("mnist", "a.gz", "a")
    (three["named"] / "mnist" / "a").touch()
    assert locations.file("mnist", "a.gz", "a").name == "a"


def test_a_relative_cache_folder_is_ignored_as_its_standard_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", "/home/someone")
    assert locations.cache_folder() == Path("/home/someone/.cache/lichen/data")
