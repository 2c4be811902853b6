"""The demo's last act as expected: two watches, a bad model that is rolled back, a good one that stays."""

from lichen_lab.demo.rollout.results import DemoRelease, Move, RolloutResults, Watcher, WatchPrediction

FIRST, BAD, GOOD = 2, 5, 4


def rows(*stretches: tuple[float, float, int], right: bool = True) -> list[WatchPrediction]:
    """Ten windows a second: from, to, version."""
    return [
        WatchPrediction(round(begin + i / 10, 2), version, right)
        for begin, end, version in stretches
        for i in range(int((end - begin) * 10))
    ]


def rolled_out() -> RolloutResults:
    """Results that pass every check."""
    results = RolloutResults(
        [Watcher("physcia", 7, "lab"), Watcher("ramalina", 10, "clinic")], "physcia", FIRST
    )
    results.first = DemoRelease(
        FIRST, "half", "lichen rollout create --version 2", 9.0, 10.0, "complete", "2 of 2"
    )
    results.bad = DemoRelease(
        BAD, "shuffled", "lichen rollout create --bundle b", 12.0, 20.0, "failed", "it erred"
    )
    results.good = DemoRelease(
        GOOD, "all", "lichen rollout create --version 4", 22.0, 45.0, "complete", "2 of 2"
    )
    results.said = {
        "physcia": [
            *rows((10, 13, FIRST)),
            *rows((13, 19, BAD), right=False),
            *rows((19, 24, FIRST), (24, 50, GOOD)),
        ],
        "ramalina": rows((10, 35, FIRST), (35, 50, GOOD)),
    }
    measures = {"windows": 60.0, "agreement": 0.05, "accuracy": 0.1, "accuracy_before": 0.8}
    results.moves = [
        Move(13.0, "physcia", "trial", BAD),
        Move(19.0, "physcia", "rolled_back", BAD, "it <says> something else", measures),
        Move(24.0, "physcia", "trial", GOOD),
        Move(30.0, "physcia", "committed", GOOD, measures={"windows": 60.0, "agreement": 0.9}),
        Move(35.0, "ramalina", "trial", GOOD),
        Move(41.0, "ramalina", "committed", GOOD),
    ]
    return results
