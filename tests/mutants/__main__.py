"""`make mutants`: a sample of small faults in the decision modules, and which of them no test notices.

Works on a copy of the tree. Its results are in mutants-out/: a run that is stopped goes on where it
was. A mutant is tried again when its module has changed, and a survivor also when a
test that reaches it has changed.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from tests.mutants import forked, plan, reach, report
from tests.mutants.mutant import Mutant
from tests.mutants.trial import Bench, Verdict

OUT = plan.ROOT / "mutants-out"


def main(words: Sequence[str]) -> int:
    """Try the sample. Returns 0 if all who live have a reason and are few, else 1."""
    options = _options(words)
    groups = [group for group in plan.groups() if fnmatch(group.name, options.group)]
    reasons = plan.accepted()
    OUT.mkdir(exist_ok=True)
    if options.fresh:
        (OUT / "results.jsonl").unlink(missing_ok=True)
    forked.preload()
    with _copied() as tree:
        everything = plan.sample(tree, groups, options.seed)
        chosen = [one for one in everything if options.only in one[1].key][: options.count]
        results = list(_tried(Bench(tree, options.budget), chosen, reasons))
    (OUT / "report.md").write_text(report.page(results, reasons, " ".join(["make mutants", *words])))
    failings = report.failings(results, reasons)
    alive = sum(result.lives for result in results)
    _say("\n".join([f"{alive} of {len(results)} mutants live: mutants-out/report.md", *failings]))
    return 1 if failings else 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants ARGS=")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--group", default="*", help="only groups of pyproject.toml with such a name")
    parser.add_argument(
        "--only", default="", help="only mutants with this text in their name (module, function, change)"
    )
    parser.add_argument(
        "--budget", type=float, default=20.0, help="processor seconds of tests for each mutant"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs have found")
    return parser.parse_args(words)


@contextmanager
def _copied() -> Iterator[Path]:
    """A copy of the working tree without what git ignores. Sockets are below it, so its name is short."""
    folder = Path(tempfile.mkdtemp(prefix="lm-"))
    tree = folder / "r"
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=plan.ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (plan.ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(plan.ROOT / name, tree / name)
        yield tree
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tried(
    bench: Bench, chosen: Sequence[tuple[plan.Group, Mutant]], reasons: dict[str, str]
) -> Iterator[report.Result]:
    known = _known()
    tests: dict[str, list[reach.Test]] = {}
    for i, (group, mutant) in enumerate(chosen, 1):
        if group.name not in tests:
            tests[group.name] = _tests(bench.tree, group)
        stamp = _stamp(bench.tree, mutant, tests[group.name])
        verdict = _before(known.get(mutant.key), stamp)
        if verdict is None:
            verdict = bench.try_mutant(mutant, tests[group.name])
            with (OUT / "results.jsonl").open("a") as file:
                file.write(json.dumps({"key": mutant.key, **stamp, "verdict": asdict(verdict)}) + "\n")
            place = f"{mutant.module}:{mutant.line} {mutant.before} -> {mutant.after}"
            known_one = " (known)" if mutant.key in reasons and verdict.outcome in report.ALIVE else ""
            _say(f"{i}/{len(chosen)} {verdict.outcome}{known_one} ({verdict.cpu_s:.1f} s) {place}")
        yield report.Result(group.name, mutant, verdict)


def _tests(tree: Path, group: plan.Group) -> list[reach.Test]:
    answers = OUT / "reach" / group.name
    answers.mkdir(parents=True, exist_ok=True)
    found: list[reach.Test] = []
    for file in group.tests:
        tests = reach.trace(tree, group.modules, file, answers)
        _say(f"{group.name}: {len(tests)} tests of {file} run its modules")
        found += tests
    return found


def _stamp(tree: Path, mutant: Mutant, tests: Sequence[reach.Test]) -> dict[str, str]:
    """What an answer depends on: the module as changed, and the files of the tests that reach it."""
    digest = hashlib.sha256()
    for file in sorted({test.name.split("::")[0] for test in tests if test.reaches(mutant)}):
        digest.update((tree / file).read_bytes())
    return {
        "source": hashlib.sha256(mutant.source.encode()).hexdigest()[:24],
        "tests": digest.hexdigest()[:24],
    }


def _known() -> dict[str, dict[str, object]]:
    file = OUT / "results.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {one["key"]: one for one in found}


def _before(one: dict[str, object] | None, stamp: dict[str, str]) -> Verdict | None:
    """The answer of an earlier run, if it still holds."""
    if one is None or one["source"] != stamp["source"]:
        return None
    verdict = Verdict(**one["verdict"])  # type: ignore[arg-type]
    return None if verdict.outcome in report.ALIVE and one["tests"] != stamp["tests"] else verdict


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
