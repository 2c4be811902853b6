"""A plain torch loop over the same windows: what a client-round costs without any federation.

``python -P -m ... NETWORK DEVICES [REUSE]``. Prints a line after each device.
"""

import copy
import sys

import torch
from torch.nn import functional

from lichen_lab.benchmarks.suite.simulation_speed.fleet import WINDOWS, task_of, windows_of
from models.methods.qqr import METHOD
from models.multimodal.network import build
from models.training.local import reuse_memory


def main(network: str, devices: int, reuse: bool) -> None:  # noqa: FBT001 - as on the command line
    """Train one epoch on each device's windows, from the same weights; ``reuse``: memory, as lichen does."""
    if reuse:
        reuse_memory()
    torch.set_num_threads(1)
    task = task_of(network, 1, 1)
    config = METHOD.configure(task)
    net = build(task)
    begun = copy.deepcopy(net.state_dict())  # a plain dict would lack the version of BatchNorm's tensors
    for number in range(devices):
        windows = windows_of(task, number, WINDOWS[network])
        net.load_state_dict(begun)
        net.train()
        sgd = torch.optim.SGD(net.parameters(), lr=config.lr)
        x, y_B = [torch.from_numpy(windows.x[name]) for name in net.names], torch.from_numpy(windows.y_B)
        for index_B in torch.split(torch.randperm(len(y_B)), config.batch):
            sgd.zero_grad()
            loss = functional.cross_entropy(net(*(x_BCT[index_B] for x_BCT in x)), y_B[index_B])
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
        sys.stdout.write(f"round {number + 1}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), reuse=len(sys.argv) > 3)  # noqa: PLR2004 - the words above
