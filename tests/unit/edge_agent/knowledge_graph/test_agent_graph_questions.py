"""Questions are read from a file that grows, whatever is written into it."""

import errno
import os
from pathlib import Path

import pytest

from edge_agent.knowledge_graph import question_file
from edge_agent.knowledge_graph.question_file import Question, QuestionFile, parse


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("pump\tfeeds\n", Question("pump", "feeds")),
        (" pump \tfeeds\t?\r\n", Question("pump", "feeds")),
        ("?\tfeeds\tboiler", Question("boiler", "feeds", heads=True)),
        ("Zoe\u0308\tlooks_after", Question("Zoë", "looks_after")),
        ("", None),
        ("  \n", None),
        ("# a comment", None),
    ],
)
def test_a_line_asks_for_tails_or_heads(line: str, question: Question | None) -> None:
    assert parse(line) == question


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pump", "is neither"),
        ("pump\tfeeds\tboiler", "is neither"),
        ("?\tfeeds", "is neither"),
        ("?\tfeeds\t?", "is neither"),
        ("a\tb\tc\td", "is neither"),
        ("\tfeeds", "the head is empty"),
        ("pump\t ", "the relation is empty"),
        ("?\tfeeds\tb\x07", "the tail .*control character"),
    ],
)
def test_a_line_that_is_no_question_says_why(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(line)


def abouts(file: QuestionFile) -> list[str]:
    return [question.about for question in file.read_new()]


def test_what_is_appended_is_new_and_a_half_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "queries.tsv"
    file = QuestionFile(path)
    assert abouts(file) == []
    path.write_text("a\tr\nb\tr\n")
    assert abouts(file) == ["a", "b"]
    assert abouts(file) == []
    with path.open("a") as out:
        out.write("a\tr\nlo")
    assert abouts(file) == ["a"], "asked again, it is asked again"
    with path.open("a") as out:
        out.write("ng\tr")
    assert abouts(file) == []
    assert abouts(file) == ["long"], "without an end, once nothing more came"
    assert abouts(file) == []


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "queries.tsv"
    path.write_text("a\tr\nb\tr\n")
    file = QuestionFile(path)
    assert abouts(file) == ["a", "b"]
    path.write_text("c\tr\n")
    assert abouts(file) == ["c"], "shorter"
    path.write_text("d\tr\ne\tr\nf\tr\n")
    assert abouts(file) == ["d", "e", "f"], "longer, and with another beginning"
    (tmp_path / "new").write_text("d\tr\ne\tr\nf\tr\ng\tr\n")
    (tmp_path / "new").replace(path)
    assert abouts(file) == ["d", "e", "f", "g"], "another file of this name"
    path.unlink()
    assert abouts(file) == []
    path.write_text("h\tr\n")
    assert abouts(file) == ["h"]


def test_wrong_lines_are_told_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "queries.tsv"
    path.write_bytes(b"a\tr\nnonsense\n\xff\xfe\tr\n" + b"x" * 9000 + b"\tr\nb\tr\n")
    file = QuestionFile(path)
    assert abouts(file) == ["a", "b"]
    assert "9002 bytes" in file.problem
    path.unlink()
    path.mkdir()
    assert abouts(file) == []
    assert "cannot be read: Is a directory" in file.problem


def test_of_a_large_file_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_file, "MAX_READ_BYTES", 100)
    path = tmp_path / "queries.tsv"
    path.write_text("".join(f"e{i:03d}\tr\n" for i in range(100)))
    file = QuestionFile(path)
    found = abouts(file)
    assert found[-1] == "e099"
    assert 10 <= len(found) <= 15
    assert "only its last 100 are read" in file.problem
    with path.open("a") as out:
        out.write("last\tr\n")
    assert abouts(file) == ["last"]


def test_a_file_that_was_closed_for_a_while_is_no_trouble_any_more(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "questions.tsv"
    path.write_text("pump\tfeeds\n")
    questions = QuestionFile(path)
    assert len(questions.read_new()) == 1

    def closed(*_args: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(type(path), "open", closed)
        assert questions.read_new() == []
    assert "cannot be read: Permission denied" in questions.problem
    assert questions.read_new() == [], "the same file, and nothing new in it"
    assert not questions.problem


def test_a_pipe_is_told_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "questions.tsv"
    os.mkfifo(path)
    questions = QuestionFile(path)
    assert questions.read_new() == []
    assert questions.problem == f"{path} cannot be read: it is a pipe"
    path.unlink()
    path.write_text("pump\tfeeds\n")
    assert questions.read_new() == [Question("pump", "feeds")]
    assert not questions.problem
