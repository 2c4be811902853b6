"""The Flower app of ``lichen bench peers``, run by Flower in an environment of its own (``make flower``).

The client calls the method's own training, as lichen's worker does: what differs is all around it. FedAvg
over float32 parameters of the network. ``PEERS_FOLDER`` has the task, one window set a device, and the logs.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from models import registry
from models.contract import ClientContext, Tensors
from models.data import window_set
from models.tensors import flatten, unflatten
from protocol.tasks.task import Task

_FOLDER = Path(os.environ["PEERS_FOLDER"])
_NETWORK = ("encoder/", "head/")


def _task() -> Task:
    return Task.model_validate_json((_FOLDER / "task.json").read_text())


def _note(file: str, line: dict[str, Any]) -> None:
    with (_FOLDER / file).open("a") as log:
        log.write(json.dumps(line) + "\n")


def _arrays(tensors: Tensors) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in tensors.items()})


def _network(task: Task) -> Tensors:
    """The initial network, without the prototypes of no round."""
    state = registry.method(task.method).client().initial(task, task.seed)
    return {name: value for name, value in flatten(state).items() if name.startswith(_NETWORK)}


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One round of one device."""
    task, number = _task(), int(context.node_config["partition-id"])
    server_round = int(message.content["config"]["server-round"])
    windows = window_set.load(_FOLDER / f"windows-{number}.npz")
    method = registry.method(task.method)
    base = {name: array.numpy() for name, array in message.content["arrays"].items()}
    state = unflatten(flatten(method.client().initial(task, task.seed)) | base)
    about = ClientContext(task=task, device=f"device-{number}", round=server_round, seed=task.seed)
    before = time.process_time()
    result = method.client().train(about, windows, state, {})
    spent = time.process_time() - before
    _note(f"train-{number}.jsonl", {"round": server_round, "train_cpu_s": spent})
    trained = {name: value + result.tensors[name] for name, value in base.items()}
    metrics = MetricRecord({"num-examples": len(windows.y_B)})
    return Message(content=RecordDict({"arrays": _arrays(trained), "metrics": metrics}), reply_to=message)


server = ServerApp()


class _Timed(FedAvg):
    """FedAvg that writes down when each round is over."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """The mean of all replies."""
        made = super().aggregate_train(server_round, replies)
        _note("rounds.jsonl", {"round": server_round, "at": time.time(), "arrays": made[0] is not None})
        return made


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds with all devices."""
    task, devices = _task(), int(context.run_config["devices"])
    strategy = _Timed(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=devices,
        min_evaluate_nodes=0,
        min_available_nodes=devices,
    )
    strategy.start(grid, _arrays(_network(task)), num_rounds=task.rounds.count)
