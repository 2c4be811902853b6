"""Flower's simulation of the same fleet, in Flower's environment; ``main`` is called from ``python -c``.

The client makes lichen's own training call on the same windows; FedAvg over float32 parameters; Flower's Ray
backend with one CPU a client. A process keeps its client and network between messages.
"""

import sys
from functools import lru_cache
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from lichen_lab.benchmarks.suite.simulation_speed.fleet import WINDOWS, task_of, windows_of
from models import registry
from models.contract import Client, ClientContext, Tensors
from models.tensors import flatten, unflatten
from protocol.tasks.task import Task

_NETWORK = ("encoder/", "head/")


@lru_cache(maxsize=1)
def begun(network: str, rounds: int, per_round: int) -> tuple[Task, Client, Tensors]:
    """The task, the client and the initial state, once in a process."""
    torch.set_num_threads(1)
    task = task_of(network, rounds, per_round)
    client = registry.method(task.method).client()
    return task, client, flatten(client.initial(task, task.seed))


def arrays(tensors: Tensors) -> ArrayRecord:
    """The network's parameters for a message."""
    return ArrayRecord({name: Array(value) for name, value in tensors.items() if name.startswith(_NETWORK)})


def client_app(network: str, rounds: int, per_round: int) -> ClientApp:
    """The app of all clients."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        task, client, initial = begun(network, rounds, per_round)
        number = int(context.node_config["partition-id"])
        base = {name: array.numpy() for name, array in message.content["arrays"].items()}
        about = ClientContext(task, f"d{number:05d}", int(message.content["config"]["server-round"]), number)
        windows = windows_of(task, number, WINDOWS[network])
        result = client.train(about, windows, unflatten(initial | base), {})
        trained = {name: value + result.tensors[name] for name, value in base.items()}
        metrics = MetricRecord({"num-examples": len(windows.y_B)})
        return Message(RecordDict({"arrays": arrays(trained), "metrics": metrics}), reply_to=message)

    return app


class Timed(FedAvg):
    """FedAvg that prints a line when a round is over."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """The mean of all replies."""
        made = super().aggregate_train(server_round, replies)
        sys.stdout.write(f"round {server_round}\n" if made[0] is not None else "failed\n")
        sys.stdout.flush()
        return made


def main(network: str, devices: int, per_round: int, rounds: int) -> None:
    """Simulate."""
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        del context
        strategy = Timed(
            fraction_train=per_round / devices,
            fraction_evaluate=0.0,
            min_train_nodes=per_round,
            min_evaluate_nodes=0,
            min_available_nodes=devices,
        )
        strategy.start(grid, arrays(begun(network, rounds, per_round)[2]), num_rounds=rounds)

    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, client_app(network, rounds, per_round), devices, backend_config=backend)
