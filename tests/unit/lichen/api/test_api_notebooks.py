"""The notebooks of ``examples/notebooks``: stored without outputs, and every cell runs."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.python import ROOT

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
notebooks = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)


def cells(file: Path, kind: str) -> list[str]:
    return [
        "".join(one["source"]) for one in json.loads(file.read_text())["cells"] if one["cell_type"] == kind
    ]


def test_api_there_are_three_notebooks_and_a_page_names_each() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    assert {file.name for file in NOTEBOOKS} == {"own_data.ipynb", "own_network.ipynb", "fleet_history.ipynb"}
    assert [file.name for file in NOTEBOOKS if file.name not in page] == []


@notebooks
def test_api_a_notebook_is_stored_without_outputs_and_places(file: Path) -> None:
    stored: dict[str, Any] = json.loads(file.read_text())
    assert stored["nbformat"] == 4
    assert stored["metadata"]["kernelspec"]["name"] == "python3"
    code = [one for one in stored["cells"] if one["cell_type"] == "code"]
    assert code
    assert [(one["outputs"], one["execution_count"], one["metadata"]) for one in code] == [
        ([], None, {})
    ] * len(code)
    assert re.findall(r"(?:/home|/root|/tmp|/Users|[A-Z]:\\)[\w/\\]*", file.read_text()) == []


@notebooks
def test_api_a_notebook_is_python_and_names_pages_that_are_there(file: Path) -> None:
    for source in cells(file, "code"):
        compile(source, file.name, "exec")
    named = re.findall(r"`(docs/[\w-]+\.md)`", "\n".join(cells(file, "markdown")))
    assert named
    assert [page for page in named if not (ROOT / page).is_file()] == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_data", r"together (?:0\.9|1\.0)\d*; alone"),
        ("own_network", r"machines\.bundle: [\d,]+ bytes"),
        ("fleet_history", r"version 4 from 3 made of \['barn', 'mill'\]"),
    ],
    ids=["own_data", "own_network", "fleet_history"],
)
def test_api_a_notebook_runs(tmp_path: Path, name: str, says: str) -> None:
    import nbformat  # noqa: PLC0415 - only here
    from nbclient import NotebookClient  # noqa: PLC0415 - only here

    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    folder = tmp_path / "examples" / "notebooks"
    book: Any = nbformat.read(folder / f"{name}.ipynb", 4)  # type: ignore[no-untyped-call]
    places = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=280, kernel_name="python3", resources=places).execute()
    texts = [
        "".join(out.get("text", ""))
        for cell in book.cells
        for out in cell.get("outputs", ())
        if "text" in out
    ]
    assert re.search(says, "".join(texts)), texts
