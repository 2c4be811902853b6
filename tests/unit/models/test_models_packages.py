"""Packages of a task: their hash, who may import them, and that nothing is imported before that is known."""

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from models import package_files, packages
from models.worker import job_folder, job_loop
from protocol.errors import Misconfigured
from protocol.tasks.network import Package
from protocol.tasks.task import Modality, Task
from tests.support.own_package import NAME, forget, importable, install, install_example, with_own
from tests.support.python import python

POINTS = {"lichen.encoders/separable": "radar.code:make"}
FILES = {"radar/__init__.py": "", "radar/code.py": "def make(**_): ...\n", "radar/table.csv": "1,2\n"}
TASK = Task(name="t", labels=("x", "y"), modalities=(Modality(name="a", channels=1, rate_hz=5),))


@pytest.fixture
def site(tmp_path):
    with importable(tmp_path / "site") as folder:
        folder.mkdir()
        yield folder


@pytest.fixture
def radar(site):
    install(site, FILES, POINTS, name="radar")
    return site


def digest(name: str = "radar") -> str:
    return package_files.find_package(name).package.sha256


def test_the_hash_is_that_of_the_files_wherever_and_whenever_they_were_installed(radar, tmp_path):
    before = digest()
    os.utime(radar / "radar/code.py", (1, 1))
    py_compile.compile(str(radar / "radar/code.py"))
    (radar / "radar-1.2.0.dist-info/INSTALLER").write_text("pip")
    (radar / "radar-1.2.0.dist-info/direct_url.json").write_text("{}")
    assert digest() == before
    with importable(tmp_path / "other") as other:
        install(other, FILES, POINTS, name="radar", listed=("../../bin/radar", "radar/__pycache__/code.pyc"))
        assert digest() == before


@pytest.mark.parametrize(
    "path",
    ["radar/code.py", "radar/__init__.py", "radar/table.csv", "radar-1.2.0.dist-info/entry_points.txt"],
)
def test_one_byte_more_is_another_hash(radar, path):
    before = digest()
    with (radar / path).open("a") as file:
        file.write("\n")
    assert digest() != before


@pytest.mark.parametrize(
    "path", ["radar/more.py", "radar/code/__init__.py", "radar/code.abi3.so", "radar/x.pyc"]
)
def test_what_an_import_could_take_counts_though_no_record_lists_it(radar, path):
    before = digest()
    (radar / path).parent.mkdir(exist_ok=True)
    (radar / path).write_text("")
    assert digest() != before
    if path == "radar/more.py":
        (radar / "radar/notes.txt").write_text("")
        (radar / path).unlink()
        assert digest() == before


def test_names_are_compared_as_pip_does(site):
    package = install_example(site)
    task = with_own(TASK, package.model_copy(update={"name": "Lichen_Example.Net"}))
    packages.require(task, ["lichen-EXAMPLE_net"])


def changed(package: Package, **fields: str) -> Task:
    return with_own(TASK, package.model_copy(update=fields))


def test_what_does_not_fit_is_refused_in_words_and_nothing_is_imported(site, tmp_path):
    """The package writes a file when it is imported: the file shows an import."""
    shown = tmp_path / "imported"
    package = install_example(site, more=f"open({str(shown)!r}, 'w').close()\n")
    cases = [
        (with_own(TASK, package), (), r'does not allow.*\[packages\] allow = \["lichen-example-net"\]'),
        (with_own(TASK, package), ("another",), "does not allow"),
        (changed(package, version="1.1.0"), (NAME,), r"uses package lichen-example-net 1\.1\.0; 1\.2\.0 is"),
        (changed(package, sha256="0" * 64), (NAME,), "sha256 000000000000.*another build, or were changed"),
        (changed(package, name="lichen-nowhere"), ("lichen-nowhere",), "lichen-nowhere is not installed"),
        (with_own(TASK, package, "own:mine"), (NAME,), r"encoders\.a\.kind: none of its packages .* 'mine'"),
    ]
    for task, allow, words in cases:
        with pytest.raises(Misconfigured, match=words):
            packages.require(task, allow)
        packages.permit(allow)
        with pytest.raises(Misconfigured, match=words):
            packages.load(task, packages.ENCODERS, str(task.encoder("a").kind))
        assert not shown.exists()
    packages.require(with_own(TASK, package), (NAME,))
    assert not shown.exists(), "a daemon checks, and does not import"
    packages.permit([NAME])
    assert callable(packages.load(with_own(TASK, package), packages.ENCODERS, "own:separable"))
    assert shown.exists()


def test_a_worker_imports_nothing_for_a_job_that_its_owner_did_not_allow(site, tmp_path):
    shown = tmp_path / "imported"
    package = install_example(site, more=f"open({str(shown)!r}, 'w').close()\n")
    job_folder.write_init(tmp_path, job_folder.InitJob(with_own(TASK, package), 0))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "models.worker", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert '"kind": "Misconfigured"' in done.stdout
    assert "does not allow" in done.stdout
    assert not shown.exists()


def test_a_package_that_fails_to_import_is_named(site):
    package = install_example(site, more="raise RuntimeError('no radar')\n")
    packages.permit([NAME])
    with pytest.raises(Misconfigured, match=r"lichen-example-net 1\.2\.0, entry .*RuntimeError: no radar"):
        packages.load(with_own(TASK, package), packages.ENCODERS, "own:separable")


def test_another_module_of_that_name_is_not_imported(site, tmp_path):
    package, shown = install_example(site), tmp_path / "imported"
    packages.permit([NAME])
    with importable(tmp_path / "before") as before:
        before.mkdir()
        (before / "lichen_example_net.py").write_text(f"open({str(shown)!r}, 'w').close()\n")
        with pytest.raises(Misconfigured, match=r"would import 'lichen_example_net' from .*before"):
            packages.load(with_own(TASK, package), packages.ENCODERS, "own:separable")
    assert not shown.exists()


def test_a_compiled_copy_of_other_code_is_not_run(site, tmp_path):
    """Of the same time and size, so that Python takes it."""
    shown, code = tmp_path / "imported", site / "lichen_example_net.py"
    install(
        site,
        {code.name: f"import pathlib; pathlib.Path({str(shown)!r}).write_text('old'); make = print\n"},
        {"lichen.encoders/separable": "lichen_example_net:make"},
    )
    os.utime(code, (1, 1))
    py_compile.compile(str(code))
    code.write_text(code.read_text().replace("old", "new"))
    os.utime(code, (1, 1))
    python("-c", f"import sys; sys.path.insert(0, {str(site)!r}); import lichen_example_net")
    assert shown.read_text() == "old", "this is what Python does by itself"
    packages.permit([NAME])
    task = with_own(TASK, package_files.find_package(NAME).package)
    packages.load(task, packages.ENCODERS, "own:separable")
    assert shown.read_text() == "new"
    assert sys.pycache_prefix is None


def test_a_worker_that_has_imported_other_files_of_it_ends_and_a_new_one_does_not(site):
    package = install_example(site)
    packages.permit([NAME])
    packages.load(with_own(TASK, package), packages.ENCODERS, "own:separable")
    with (site / "lichen_example_net.py").open("a") as file:
        file.write("\n")
    packages.permit([NAME])
    with pytest.raises(Misconfigured, match="another build"):
        packages.load(with_own(TASK, package), packages.ENCODERS, "own:separable")
    now = with_own(TASK, package_files.find_package(NAME).package)
    with pytest.raises(SystemExit, match="this process has imported other files of it"):
        job_loop.answer(lambda _: packages.load(now, packages.ENCODERS, "own:separable"), Path())
    forget(site)
    packages.permit([NAME])
    packages.load(now, packages.ENCODERS, "own:separable")


def test_an_editable_installation_and_one_without_its_list_of_files_are_refused(site):
    install(site, {}, POINTS, name="sonar", listed=("__editable__.sonar.pth",))
    with pytest.raises(Misconfigured, match=r"sonar .* editable mode .*install it from a wheel"):
        package_files.find_package("sonar")
    about = install(site, FILES, POINTS, name="radar")
    (about / "RECORD").unlink()
    with pytest.raises(Misconfigured, match="no RECORD"):
        package_files.find_package("radar")


def test_a_file_that_is_gone_or_is_none_is_named(radar):
    (radar / "radar/table.csv").unlink()
    with pytest.raises(Misconfigured, match=r"radar 1\.2\.0: .*table\.csv: No such file .*install it again"):
        package_files.find_package("radar")
    os.mkfifo(radar / "radar/table.csv")
    with pytest.raises(Misconfigured, match=r"table\.csv is no file"):
        package_files.find_package("radar")


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("RECORD", b"radar/code.py,,\n\xff\xfe,,\n"),
        ("METADATA", b"Metadata-Version: 2.1\nName: radar\n"),
        ("METADATA", b"Metadata-Version: 2.1\nName: ra dar/x\nVersion: 1\n"),
        ("entry_points.txt", b"\xff"),
    ],
)
def test_damaged_metadata_is_an_error_in_words(radar, file, data):
    (radar / "radar-1.2.0.dist-info" / file).write_bytes(data)
    with pytest.raises(Misconfigured, match="package radar"):
        package_files.find_package("radar")


@pytest.mark.usefixtures("radar")
def test_what_is_read_is_bounded(monkeypatch):
    monkeypatch.setattr(package_files, "MAX_BYTES", 10)
    with pytest.raises(Misconfigured, match="over 10 bytes"):
        package_files.find_package("radar")
    monkeypatch.setattr(package_files, "MAX_FILES", 2)
    with pytest.raises(Misconfigured, match="has 4 files; at most 2"):
        package_files.find_package("radar")
