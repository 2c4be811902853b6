"""Everything that the documents name exists: links, headings, tests, files, commands and their options."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from lichen.cli import PARTS, front, mount

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = (
    "protocol|runtime|models|export|edge_agent|coordinator|console|lichen(?:_lab)?"
    "|tests|examples|docs|benchmarks"
)
TESTS = {file.name: file for file in (ROOT / "tests").rglob("test_*.py")}

MOST_WORDS = 2500
MOST_WORDS_OF_A_PARAGRAPH = 120
MOST_COLUMNS = 120
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(text: str) -> list[str]:
    """Lines of fenced and of indented code."""
    bodies = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    fenced = [line for body in bodies for line in body.split("\n")]
    return fenced + re.findall(r"^ {4}(lichen .*|pytest .*)$", text, re.MULTILINE)


def spans(text: str) -> list[str]:
    """Text between backticks, also across the end of a line."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables, without code."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n", prose):
        if block.startswith("    "):
            continue  # indented code
        for part in re.split(r"\n(?=\s*(?:[-*] |\d+\. |\|))", block):
            yield from re.split(r"(?<!\\)\|", part) if part.lstrip().startswith("|") else [part]


def wide(text: str) -> list[str]:
    """Lines of prose that are too wide for a split screen; tables and code cannot be wrapped."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.split("\n") if not re.match(r"\s*\||    |#", line)]
    return [line for line in lines if len(line) > MOST_COLUMNS]


def anchors(page: Path) -> set[str]:
    """The anchors of the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pages
def test_arch_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    broken = []
    for link in links:
        file, _, heading = link.partition("#")
        target = page if not file else (page.parent / file).resolve()
        if "://" in link:
            continue
        if not target.exists() or (heading and heading not in anchors(target)):
            broken.append(link)
    assert broken == []


@pages
def test_arch_every_test_that_a_page_names_is_there(page: Path) -> None:
    text, missing = page.read_text(), []
    for folder, name, function in re.findall(r"((?:tests/\w+/)?)(test_\w+\.py)(?:::(\w+))?", text):
        file = TESTS.get(name)
        if file is None or (folder and ROOT / folder / name != file):
            missing.append(folder + name)
        elif function and f"def {function}(" not in file.read_text():
            missing.append(f"{name}::{function}")
    assert missing == []


@pages
def test_arch_every_file_that_a_page_names_is_there(page: Path) -> None:
    if page.parent.name == "adr":
        return  # a decision describes the tree of its time
    named = [
        span for span in spans(page.read_text()) if re.fullmatch(rf"(?:{PACKAGES})(?:/\w[\w.-]*)+/?", span)
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []


current = pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name != "adr" and page.name != "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)


@current
def test_arch_a_page_can_be_read(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= MOST_WORDS
    long = [part[:60] for part in paragraphs(text) if len(part.split()) > MOST_WORDS_OF_A_PARAGRAPH]
    assert (long, wide(text)) == ([], [])


def test_arch_what_is_too_long_to_read_is_found() -> None:
    words = " ".join(["word"] * (MOST_WORDS_OF_A_PARAGRAPH + 1))
    text = f"# A page\n\n{words}\n\n- item\n- {words}\n\n| a | {words} |\n\n```\n{words}\n```\n"
    assert [len(part.split()) for part in paragraphs(text) if len(part) > len(words) - 2] == [121, 122, 121]
    assert len(wide(text)) == 2


def test_arch_every_document_that_the_code_names_is_there() -> None:
    folders = [
        folder for folder in ROOT.iterdir() if re.fullmatch(rf"{PACKAGES}|install|systemd", folder.name)
    ]
    files = [file for folder in folders if folder.name != "docs" for file in folder.rglob("*")]
    named = [
        (str(file.relative_to(ROOT)), name)
        for file in files
        if file.suffix in {".py", ".toml", ".service", ".conf", ".sh", ".html"}
        for name in re.findall(r"\b(docs/[\w/.-]+\.md|DESIGN[ ]section|shared/[F]ACTS)\b", file.read_text())
    ]
    assert [(file, name) for file, name in named if not (ROOT / name).exists()] == []
    assert len(named) > 30


def commands(text: str) -> Iterator[list[str]]:
    """Arguments of each ``lichen ...`` in code."""
    for line in [*blocks(text), *spans(text)]:
        found = re.match(r"(?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?lichen ((?:[a-z]|--).*)", line.strip())
        if found and "\\" not in line:  # with a backslash: bytes of a protocol
            words = shlex.split(re.split(r" [#>&] ?| \| ", found[1])[0].replace("'", ""))
            yield [word.strip("[]") for word in words]


@cache
def command_of(part: str) -> Any:
    """A part of the command line with all that is below it."""
    return get_command(mount(part))


def wrong(words: list[str]) -> str:
    """The unknown parts of a command line; empty if all exist."""
    if words[0] in {"--help", "--version"}:
        return ""
    first, *rest = words
    if first not in PARTS:
        return f"no command {first!r}: {sorted(PARTS)}"
    known: Any = command_of(first)
    while (subs := getattr(known, "commands", None)) and rest and not rest[0].startswith("-"):
        names, rest = rest[0].split("|"), rest[1:]
        if names[0].isupper():  # `lichen bench NAME`
            return ""
        if lost := [name for name in names if name not in subs]:
            return f"{first} has no {lost}"
        known = subs[names[0]]
    taken = {opt for param in known.params for opt in param.opts} | {"--help", "-h"}
    return " ".join(word for word in rest if word.startswith("-") and word != "-" and word not in taken)


@pages
def test_arch_every_command_that_a_page_names_is_there(page: Path) -> None:
    found = [(" ".join(words), wrong(words)) for words in commands(page.read_text())]
    assert [(words, what) for words, what in found if what] == []


def leaves(name: str, command: Any) -> Iterator[str]:
    """Every command below, with its whole name."""
    subs = getattr(command, "commands", None)
    if not subs or command.invoke_without_command:  # a command of its own, beside those below
        yield name
    for sub, below in (subs or {}).items():
        yield from leaves(f"{name} {sub}", below)


def listed(text: str) -> set[str]:
    """Commands in the first column of a table: ``lichen agent label list`, `set``` names two."""
    found = set()
    for cell in re.findall(r"^\| (`lichen [^|]+) \|", text, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", cell)
        found |= {first, *(f"{first.rpartition(' ')[0]} {other}" for other in others)}
    return found


def test_arch_the_page_of_commands_has_every_command() -> None:
    shown = listed((ROOT / "docs" / "commands.md").read_text())
    every = {name for part in PARTS for name in leaves(f"lichen {part}", command_of(part))}
    benches = {name for name in every if name.startswith("lichen bench ")}
    assert (every - benches - shown, shown - every) == (set(), {"lichen bench"})


NOT_MODULES = {"task", "evaluation", "window", "rounds", "robust", "coordinator", "agent"}
methods = pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "methods").glob("*.md")), ids=lambda page: page.stem
)


def nowhere(folder: Path, text: str) -> list[str]:
    """Modules, and names in modules, that a method's page names and its folder (or the repository) lacks."""
    lost = []
    for span in spans(text):
        if (
            not re.fullmatch(r"(?:[a-z]\w*/)*[a-z]\w*(?:\.[a-z]\w*)*\.\w+", span)
            or span.split(".")[0] in NOT_MODULES
        ):
            continue
        module, _, name = span.rpartition(".")
        files = [base / f"{module.replace('.', '/')}.py" for base in (folder, ROOT)]
        code = "".join(file.read_text() for file in files if file.exists())
        package = (ROOT / span.replace(".", "/")).with_suffix(".py")
        defined = re.search(rf"^(?:class|def|async def) {name}\b", code, re.MULTILINE)
        if not (package.exists() or (code and (name == "py" or defined))):
            lost.append(span)
    return lost


@methods
def test_arch_every_module_that_a_page_of_a_method_names_is_there(page: Path) -> None:
    assert nowhere(ROOT / "models" / "methods" / page.stem, page.read_text()) == []


def test_arch_a_module_that_is_nowhere_is_found() -> None:
    text = "`losses.imputed`, `losses.gone`, `gone.py`, `models.aggregation.exact_sums.RowSum`, `task.toml`"
    assert nowhere(ROOT / "models" / "methods" / "qqr", text) == ["losses.gone", "gone.py"]


def test_arch_the_looks_themselves_find_what_is_wrong() -> None:
    text = "`lichen bench kils`, `lichen agent\nenroll --invite-fil x`\n\n    lichen bench fanin --quick\n"
    assert [wrong(words) for words in commands(text)] == ["", "bench has no ['kils']", "--invite-fil"]
    assert front().registered_commands


def test_arch_every_page_is_reached_from_the_readme() -> None:
    seen, open_ = set(), [ROOT / "README.md"]
    while open_:
        page = open_.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#]+)", page.read_text())
        found = [(page.parent / link).resolve() for link in links if "://" not in link]
        open_ += [
            file for target in found for file in ([target] if target.is_file() else target.rglob("*.md"))
        ]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in seen] == []


def test_arch_every_decision_has_a_number_of_its_own() -> None:
    for page in sorted((ROOT / "docs" / "adr").glob("*.md")):
        number = int(page.name[:4])
        assert re.match(rf"# (ADR )?{number}[.:] ", page.read_text()), (
            f"{page.name}: its heading has another number"
        )
    numbers = [page.name[:4] for page in (ROOT / "docs" / "adr").glob("*.md")]
    assert len(set(numbers)) == len(numbers), "two decisions have one number"
