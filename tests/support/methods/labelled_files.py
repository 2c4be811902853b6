"""Labelled tables and their task."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from protocol.tasks.labelling import Labelled
from protocol.tasks.task import Modality, Task, Window

LABELS = ("slow", "middle", "fast")
Cells = Mapping[str, Sequence[object]]


def task_of(file: str = "own.csv", labels: tuple[str, ...] = LABELS, **named: str) -> Task:
    return Task(
        name="toy",
        labels=labels,
        modalities=(
            Modality(name="acc", channels=2, rate_hz=10, unit="g", low=-8, high=8),
            Modality(name="gyr", channels=1, rate_hz=5),
        ),
        window=Window(length_s=2.0, stride_s=1.0),
        labelled=Labelled(file=file, **named),
    )


def cells(words: Sequence[object], seconds: float = 10.0, seed: int = 0) -> dict[str, list[object]]:
    """Rows at 10 Hz, gyr in every second one; each label holds for ``seconds``."""
    count = round(10 * seconds)
    rng, n = np.random.default_rng(seed), count * len(words)
    values = rng.normal(size=(n, 3)).round(4)
    return {
        "t": [round(at / 10, 1) for at in range(n)],
        "acc.x": values[:, 0].tolist(),
        "acc.y": values[:, 1].tolist(),
        "gyr.z": [value if at % 2 == 0 else None for at, value in enumerate(values[:, 2].tolist())],
        "label": [word for word in words for _ in range(count)],
    }


def write_csv(path: Path, columns: Cells, encoding: str = "utf-8") -> Path:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
    path.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding=encoding)
    return path
