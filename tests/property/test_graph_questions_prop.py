"""A file of questions may grow in any pieces, and hold any bytes."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.knowledge_graph.question_file import QuestionFile

PIECES = st.one_of(
    st.sampled_from([b"a\tr\n", b"b\tr", b"\n", b"?\tr\tc\n", b"a", b"\t", b"#", b"\r\n", b"\xff", b"?"]),
    st.binary(max_size=20),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_questions_do_not_depend_on_when_the_file_is_looked_at(
    pieces: list[bytes], looks: list[bool]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queries.tsv"
        path.touch()
        piecewise, found = QuestionFile(path), []
        for piece, look in zip(pieces, looks, strict=False):
            with path.open("ab") as out:
                out.write(piece)
            # a carriage return may be half of a line's end: the other half comes with the next piece
            if look and piece and not piece.endswith(b"\r"):
                found += piecewise.read_new()
        with path.open("ab") as out:
            out.write(b"\n")
        found += piecewise.read_new()
        assert found == QuestionFile(path).read_new()
