"""lichen's simulation as a process: ``python -P -m ... NETWORK DEVICES PER_ROUND ROUNDS WORKERS AT_ONCE``.

Prints a line when a round is over.
"""

import sys

import torch

from lichen_lab.benchmarks.suite.simulation_speed.fleet import WINDOWS, task_of, windows_of
from lichen_lab.simulation.training.runner import RoundRecord, simulate


def main(  # noqa: PLR0917 - as on the command line
    network: str, devices: int, per_round: int, rounds: int, workers: int, at_once: int
) -> None:
    """Simulate."""
    torch.set_num_threads(1)
    task = task_of(network, rounds, per_round)
    fleet = {f"d{number:05d}": windows_of(task, number, WINDOWS[network]) for number in range(devices)}

    def over(record: RoundRecord) -> None:
        if len(record.accepted) != per_round:
            raise RuntimeError(f"round {record.round}: {len(record.accepted)} updates of {per_round}")
        sys.stdout.write(f"round {record.round}\n")
        sys.stdout.flush()

    simulate(task, fleet, None, task.seed, workers=workers, devices_at_once=at_once, progress=over)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
