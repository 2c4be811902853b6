"""Takes finished runs of earlier code over, where the code of today computes the same.

A finished run counts only for the code that made it (:mod:`lichen_lab.benchmarks.study.run_cache`): after a
move of files, or a change without effect on figures, no earlier run counts. Whether a change affects figures
is measured: of all runs that differ only in their seed, the quickest is made again. If it comes out the same
to the last bit, the others are written again under today's digests; if not, they stay runs of other code. A
run without others of its kind is left to be made when it is asked for.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.study.parallel_runs import run_each
from lichen_lab.benchmarks.study.run_spec import O, S
from lichen_lab.benchmarks.study.study import Study, distinct

_TIMES: Final = frozenset({"seconds", "cpu_s", "triples_s"})
"""Fields of outcomes that are never the same again."""


def rekey(study: Study[S, O], path: Path | None, say: Say, workers: int | None = None) -> tuple[int, int]:
    """Take over a study's finished runs of other versions of the code.

    Args:
        study: whose they are.
        path: the file; None: the cache's.
        say: told what is made again, and what came out otherwise.
        workers: processes; None is one a CPU.

    Returns:
        How many runs were taken over, and how many were not because their like came out otherwise.

    Raises:
        NotWritten: the file that was named cannot be read or written.
        Misconfigured: a data set is not here.
        Transient: a worker was killed; what is finished is kept.
    """
    store = study.store(path)
    groups = _alike(study, [told for told in store.lines() if told.get("code") != study.marks()["code"]])
    wanted = {name: min(runs, key=lambda run: run[1].seconds) for name, runs in groups.items() if runs[1:]}
    made = run_each(distinct(one for one, _ in wanted.values()), store, say, study.run, workers)
    taken = lost = 0
    for name, (sample, before) in wanted.items():
        left = [(one, outcome) for one, outcome in groups[name] if store.get(one) is None]
        again = made[sample.key()]
        again = replace(again, probes={probe: again.probes[probe] for probe in before.probes})
        if untimed(asdict(before)) == untimed(asdict(again)):
            taken += len(left)
            for one, outcome in left:
                store.put(one, outcome)
        elif left:
            lost += len(left)
            say(f"{sample.fleet}, {sample.method}, seed {sample.seed}: the figures are others now")
    return taken, lost


def _alike(study: Study[S, O], lines: list[dict[str, Any]]) -> dict[str, list[tuple[S, O]]]:
    """Whole runs with what they left, by code and all that a run depends on but its seed."""
    read = TypeAdapter(study.spec).validate_python
    groups: dict[str, list[tuple[S, O]]] = {}
    for told in lines:
        try:
            one, outcome = read(told["setting"]), study.read(told["outcome"])
        except (ValueError, KeyError, TypeError):
            continue  # of a format that is read no more
        if not one.small:
            alike = one.at(0).key()
            groups.setdefault(f"{told['code']} {alike}", []).append((one, outcome))
    return groups


def untimed(told: Any) -> Any:
    """What an outcome tells, times aside."""
    if isinstance(told, dict):
        return {name: untimed(value) for name, value in told.items() if name not in _TIMES}
    return [untimed(value) for value in told] if isinstance(told, list | tuple) else told
