"""Files of pages: unchanged copies of other projects, and paths that change with the content."""

import hashlib
import tomllib
from importlib.resources import files

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from runtime.web.assets import Assets

FOLDER = files("runtime.web") / "assets"
VENDORED = tomllib.loads((FOLDER / "vendored.toml").read_text())["file"]


@pytest.mark.parametrize("entry", VENDORED, ids=lambda entry: entry["name"])
def test_web_a_file_of_another_project_is_the_one_of_its_package(entry: dict[str, str]) -> None:
    assert hashlib.sha256((FOLDER / entry["name"]).read_bytes()).hexdigest() == entry["sha256"]
    licence = entry["name"].partition(".")[0] + ".LICENSE"
    assert (FOLDER / licence).is_file()


def test_web_every_minified_file_is_listed() -> None:
    found = {file.name for file in FOLDER.iterdir() if ".min." in file.name}
    assert found == {entry["name"] for entry in VENDORED if ".min." in entry["name"]}


def test_web_a_file_is_kept_for_good_under_a_path_with_its_digest() -> None:
    assets = Assets()
    client = TestClient(Starlette(routes=[assets.route]))
    path = assets.url("lichen.css")
    answer = client.get(path)
    assert answer.text == (FOLDER / "lichen.css").read_text()
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-encoding"] == "gzip"
    plain = client.get(path, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == (FOLDER / "lichen.css").read_bytes()


def test_web_only_files_of_the_packages_are_served() -> None:
    assets = Assets()
    client = TestClient(Starlette(routes=[assets.route]))
    digest = assets.url("lichen.css").split("/")[2]
    for path in (
        f"/static/{digest}/htmx.min.js",
        f"/static/{digest}/%2e%2e%2fsecurity.py",
        "/static/0/x.css",
    ):
        assert client.get(path).status_code == 404
    with pytest.raises(KeyError):
        assets.url("vendored.toml")
