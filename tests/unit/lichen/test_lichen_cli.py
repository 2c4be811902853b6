"""The front door: cheap to open, finds its parts, and says errors in words with stable exit codes."""

from pathlib import Path

import pytest

from lichen import cli
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime import exit_codes
from runtime.process.fast_arguments import config_argument
from tests.support.python import python


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    told = capsys.readouterr()
    return int(left.value.code or 0), told.out, told.err


def test_the_help_names_every_part_and_imports_none() -> None:
    probe = (
        "import sys\n"
        "from lichen.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'onnxruntime', 'edge_agent', 'coordinator', 'export', 'models'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = python("-c", probe)
    assert "HEAVY []" in done.stdout
    assert all(name in done.stdout for name in cli.PARTS)


@pytest.mark.parametrize("name", sorted(cli.PARTS))
def test_every_part_mounts_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert f"lichen {name}" in out
    assert "--install-completion" not in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("rollout create", "Defaults come from `rollout` in coordinator.toml."),
        ("status", "127.0.0.1"),
        ("status", "1883"),
    ],
)
def test_the_help_names_where_defaults_come_from(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in " ".join(run(capsys, *command.split(), "--help")[1].split())


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert (code, out.split()[0]) == (0, "lichen")


def test_an_unknown_word_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "agnet")
    assert code == 2
    assert "agnet" in err


def test_a_missing_config_is_the_operators_and_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, "coordinator", "serve", "--config", str(tmp_path / "no.toml"))
    assert code == 78
    assert "no.toml" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Misconfigured("agent.toml: mqtt.hosst"), 78),
        (Refused(Reason.TOO_LARGE, "a frame of 9 GB"), 65),
        (Refused(Reason.UNKNOWN_TASK, ""), 65),
        (Transient("waited 60 s for the broker"), 75),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_its_words(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str) -> None:
        raise error

    monkeypatch.setattr(cli, "mount", broken)
    got, _, err = run(capsys, "demo")
    assert got == code
    words = error.words if isinstance(error, Refused) else str(error)
    assert err == f"lichen: {words}\n"
    assert "_" not in err, "words for programs are for logs"


def test_a_missing_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(_: str) -> None:
        raise ModuleNotFoundError("No module named 'sqlalchemy'", name="sqlalchemy.orm")

    monkeypatch.setattr(cli, "mount", lacking)
    code, _, err = run(capsys, "coordinator")
    assert code == 69
    assert "pip install 'lichen[coordinator]'" in err


def test_the_page_of_exit_codes_has_every_one() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/exit-codes.md").read_text()
    rows = {tuple(row.split(" | ")[:2]) for row in page.splitlines()}
    codes = {name.lower(): code for name, code in vars(exit_codes).items() if name.isupper()}
    assert codes
    assert {(f"| {code}", name) for name, code in codes.items()} <= rows


def test_a_missing_module_of_ours_is_a_fault_and_not_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(_: str) -> None:
        raise ModuleNotFoundError("No module named 'lichen.gone'", name="lichen.gone")

    monkeypatch.setattr(cli, "mount", lacking)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["demo"])


def test_the_published_asyncapi_document_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "protocol", "asyncapi")
    assert code == 0
    assert out == (Path(__file__).parents[3] / "docs" / "protocol" / "asyncapi.json").read_text()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (NotADirectoryError(20, "Not a directory"), exit_codes.CANTCREAT, "cannot be made: Not a directory"),
        (
            PermissionError(13, "Permission denied"),
            exit_codes.NOPERM,
            "choose another place, or another user",
        ),
        (OSError(30, "Read-only file system"), exit_codes.NOPERM, "Read-only file system"),
        (OSError(28, "No space left on device"), exit_codes.IOERR, "not written: No space left on device"),
    ],
)
def test_an_output_that_cannot_be_written_is_said_in_words(
    error: OSError, code: int, words: str, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("lichen_lab.simulation.data_cli.spar.recording", lambda *_, **__: {})
    monkeypatch.setattr("lichen_lab.simulation.data_cli.spar.load", list)
    monkeypatch.setattr("lichen_lab.simulation.data_cli.spar.save", fails)
    left, _, said = run(capsys, "data", "recording", "1", "--out", "there/x.npz")
    assert left == code
    assert words in said
    assert "there/x.npz" in said


def test_an_output_below_a_file_is_73(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code, _, said = run(capsys, "demo", "--out", str(tmp_path / "file" / "demo"))
    assert code == exit_codes.CANTCREAT, said


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ((), "/etc/lichen/agent.toml"),
        (("--config", "a.toml"), "a.toml"),
        (("-c", "a.toml"), "a.toml"),
        (("--config=a.toml",), "a.toml"),
    ],
)
def test_a_daemon_finds_its_file(words: tuple[str, ...], file: str) -> None:
    assert config_argument("agent", words) == Path(file)


@pytest.mark.parametrize(
    "words", [("--help",), ("-c",), ("--config=",), ("-c", ""), ("a.toml",), ("-c", "a.toml", "b.toml")]
)
def test_what_a_daemon_cannot_read_is_left_to_the_command_line(words: tuple[str, ...]) -> None:
    assert config_argument("agent", words) is None


def test_an_agent_starts_without_the_library_of_the_command_line(tmp_path: Path) -> None:
    probe = (
        "import sys\n"
        "from lichen.cli import main\n"
        "try:\n    main(['agent', 'run', '--config', 'no.toml'])\n"
        "except SystemExit as left:\n    print('LEFT', left.code)\n"
        "print('HEAVY', sorted({'typer', 'rich', 'pydantic_settings', 'onnxruntime'} & set(sys.modules)))\n"
    )
    done = python("-c", probe, cwd=tmp_path)
    assert "LEFT 78" in done.stdout
    assert "HEAVY []" in done.stdout
    assert "no.toml: no such file" in done.stderr


def test_wrong_words_for_a_daemon_are_explained_by_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(capsys, "agent", "run", "--konfig", "a.toml")
    assert code == 2
    assert "--konfig" in err
