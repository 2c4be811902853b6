"""Many runs of the study: each training once, with every probe that anyone asks of it."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from lichen.bench._runs import run_each
from lichen.bench.qqr.setting import Outcome, Setting
from lichen.bench.qqr.store import Store
from lichen.bench.result import Say

Run = Callable[[Setting], Outcome]


def trained(setting: Setting) -> Outcome:
    """A run, in whatever process this is."""
    from lichen.bench.qqr.one import run  # noqa: PLC0415 - torch, only where runs are made

    return run(setting)


def distinct(settings: Iterable[Setting]) -> list[Setting]:
    """Each training once, asked every probe that anyone asks of it; in the order of first mention."""
    merged: dict[str, Setting] = {}
    for setting in settings:
        key = setting.key()
        before = merged.get(key, setting)
        merged[key] = replace(before, probes=tuple(sorted({*before.probes, *setting.probes})))
    return list(merged.values())


def run_all(
    settings: Iterable[Setting], store: Store, say: Say, *, workers: int | None = None, run: Run = trained
) -> dict[str, Outcome]:
    """All the outcomes by :meth:`Setting.key`: :func:`lichen.bench._runs.run_each`, which see.

    ``settings`` may repeat.
    """
    wanted = {setting.key(): setting for setting in distinct(settings)}
    return run_each(wanted, store, say, run, workers)
