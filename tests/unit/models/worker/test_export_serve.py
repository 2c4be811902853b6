import io
import json
from pathlib import Path

import pytest

from models.worker.job_loop import answer, serve
from protocol.errors import Misconfigured, Reason, Refused, Transient
from tests.support.python import python


def raising(error: Exception):
    def do(_: Path) -> None:
        raise error

    return do


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            Refused(Reason.NON_FINITE, "w is NaN"),
            {"kind": "Refused", "reason": "non_finite", "error": "w is NaN"},
        ),
        (Misconfigured("no key"), {"kind": "Misconfigured", "error": "no key"}),
        (Transient("later"), {"kind": "Transient", "error": "later"}),
        (ZeroDivisionError("oh"), {"kind": "Fault", "error": "ZeroDivisionError: oh"}),
    ],
)
def test_each_failure_is_answered_with_who_must_act(error: Exception, said: dict[str, str]) -> None:
    assert answer(raising(error), Path("x")) == {"ok": False, **said}


def test_a_bad_line_or_job_does_not_end_the_service() -> None:
    done: list[Path] = []
    lines = ['{"job": "/a"}', "nonsense", "[]", '{"job": 3}', '{"job": "/b"}']
    answers = io.StringIO()
    serve(done.append, io.StringIO("\n".join(lines)), answers)
    assert done == [Path("/a"), Path("/b")]
    said = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert [a["ok"] for a in said] == [True, False, False, False, True]
    assert {a["kind"] for a in said if not a["ok"]} == {"Fault"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("print('library noise')", 0),
        ("raise errors.Misconfigured('x')", 78),
        ("raise errors.Refused(errors.Reason.FULL, 'x')", 65),
        ("raise errors.Transient('x')", 75),
        ("raise KeyError('x')", 70),
    ],
)
def test_a_single_jobs_exit_status_and_a_clean_standard_output(body: str, code: int, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom models.worker.job_loop import main\nfrom protocol import errors\n"
        f"def do(folder):\n    {body}\nsys.exit(main(do, 'm', sys.argv[1:]))\n"
    )
    done = python("-c", script, str(tmp_path), status=code)
    assert json.loads(done.stdout)["ok"] is (code == 0)
    assert ("library noise" in done.stderr) is (code == 0)


def test_wrong_usage_is_explained() -> None:
    done = python("-m", "export", status=2)
    assert "python -P -m export JOBDIR | --serve" in done.stderr
