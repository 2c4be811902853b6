"""Findings of ``lichen data check`` as JSON values and as lines for people."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from lichen.commands.data_check import Checked
from models.data.streams.recording_findings import ERROR, StreamFinding
from protocol.tasks.task import Task


def report(task: Task, every: Sequence[Checked], across: Sequence[StreamFinding]) -> dict[str, Any]:
    """As JSON values; ``sound``: there are no errors."""
    findings = [*across, *(finding for one in every for finding in one.findings)]
    return {
        "task": task.name,
        "labels": list(task.labels),
        "files": [one.as_json() for one in every],
        "across": [finding.as_json() for finding in across],
        "errors": sum(finding.severity == ERROR for finding in findings),
        "warnings": sum(finding.severity != ERROR for finding in findings),
        "sound": not any(finding.severity == ERROR for finding in findings),
    }


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    names = [one["file"].rpartition("/")[2] for one in result["files"]]
    wide = max(4, *map(len, names))
    columns = [label[:12] for label in result["labels"]]
    heads = "  ".join(f"{label:>{max(6, len(label))}}" for label in columns)
    yield f"{'file':{wide}}  {'seconds':>9}  {'windows':>7}  {'labelled':>8}  {'left out':>8}  {heads}"
    for name, one in zip(names, result["files"], strict=True):
        seconds = "" if one["seconds"] is None else f"{one['seconds']:.0f}"
        left = "" if one["share_without_window"] is None else f"{one['share_without_window']:.1%}"
        counts = "  ".join(
            f"{one['by_class'].get(label, 0):>{max(6, len(short))}}"
            for label, short in zip(result["labels"], columns, strict=True)
        )
        numbers = f"{one['windows']:>7}  {one['labelled']:>8}  {left:>8}"
        yield f"{name:{wide}}  {seconds:>9}  {numbers}  {counts}"
    for name, one in zip(names, result["files"], strict=True):
        for finding in one["findings"]:
            yield f"{finding['severity']}: {name}: {finding['words']}"
    for finding in result["across"]:
        yield f"{finding['severity']}: {finding['words']}"
    verdict = "the task can use them" if result["sound"] else "correct the errors first"
    yield f"{len(names)} files, {result['errors']} errors, {result['warnings']} warnings: {verdict}"


def counted(where: str, every: Sequence[Checked]) -> dict[str, Any]:
    """The windows of all files together, by class and modality, as ``lichen task check`` shows them."""
    by_class: Counter[str] = Counter()
    by_modality: dict[str, Counter[str]] = {}
    for one in every:
        by_class.update(one.by_class)
        for name, counts in one.by_modality.items():
            by_modality.setdefault(name, Counter()).update(counts)
    windows = sum(one.windows for one in every)
    return {
        "file": where,
        "kind": "windows",
        "recordings": sum(one.seconds is not None for one in every),
        "windows": by_class.total(),
        "unlabelled": windows - by_class.total(),
        "by_class": dict(by_class),
        "by_modality": {name: dict(counts) for name, counts in by_modality.items()},
        "targets": {},
    }


def by_kind(every: Sequence[Checked]) -> Iterator[str]:
    """One line for each kind of finding in a modality: the first one, and how many more files have it."""
    found: dict[tuple[str, str], tuple[str, set[str]]] = {}
    for one in every:
        for finding in one.findings:
            words = f"{one.file.name}: {finding.words}"
            found.setdefault((finding.kind, finding.modality), (words, set()))[1].add(one.file.name)
    for words, files in found.values():
        yield f"{words} ({len(files) - 1} more files alike)" if len(files) > 1 else words
