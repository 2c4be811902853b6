"""The client half of DisentAFL: training on its route, its domain gate, its own model. Imports torch.

Order within a round (Algorithm 1): the agent has chosen a domain and fetched the route (``router.py``). Here
the route is trained, the domain evaluated on windows that did not train, and the gate fitted to the results.
"""

from dataclasses import dataclass

import numpy as np
import torch

from models.contract import (
    Blobs,
    ClientContext,
    Evaluation,
    LocalResult,
    Profile,
    Tensors,
    WindowSet,
)
from models.methods.disentafl.distillation import FleetTeacher, Rows, own_features
from models.methods.disentafl.evaluation import evaluated
from models.methods.disentafl.local_training import LocalTraining, accuracy, agreement, seen_by
from models.methods.disentafl.messages import DisentMessage
from models.methods.disentafl.network.batch import SupernetBatch
from models.methods.disentafl.network.inference import RouteModel
from models.methods.disentafl.network.supernet import Subnet, part, subnet
from models.methods.disentafl.personal import begun, kept
from models.methods.disentafl.round_plan import Work
from models.methods.disentafl.routing import domain_gate, mean_features
from models.methods.disentafl.routing.blob_names import config_of, domains_of, gated, route
from models.methods.disentafl.server import travelling
from models.seeds import derive_seed
from models.tensors import difference, flatten
from models.training import local
from protocol.frames.tensors import Codec
from protocol.tasks.task import Task


class DisentAflClient:
    """See :class:`models.contract.Client`."""

    def initial(self, task: Task, seed: int) -> Blobs:
        """The supernet: every blob that some route has.

        A blob's values depend on the seed and its name alone, so that a task that gains a modality or target
        begins with the others as they were.
        """
        blobs: Blobs = mean_features.fresh(task)
        for blob in route(task, Profile(task.input_names, task.target_names)):
            kind, _, name = blob.partition("/")
            own = derive_seed(seed, "initial", blob)
            if kind == "gate":
                blobs[blob] = domain_gate.initial(task, name, np.random.default_rng(own))
            elif blob not in blobs:
                local.start_deterministic(own)
                module = part(task, config_of(task), blob)
                blobs[blob] = {f"{blob}/{n}": p.detach().numpy() for n, p in module.named_parameters()}
        return {blob: blobs[blob] for blob in sorted(blobs)}

    def train(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> LocalResult:
        """Train the route that ``state`` holds; of several domains, the gate's choice.

        Parts that the device has no data for are left out of the update, whatever its profile says. Private
        are the gate's memory, and the device's personal tensors (``personal.py``).

        Raises:
            Transient: no window has one of the route's modalities and a label of one of its targets.
        """
        work = Work.of(context, windows, state)
        generator = local.start_deterministic(derive_seed(context.seed, context.device, context.round))
        net = Subnet(context.task, work.profile, work.domain if domains_of(state) else None)
        net.load(flatten(begun(work.config, state, private)))
        everything = SupernetBatch.of(context.task, net, work.windows)
        judges_B = torch.from_numpy(work.judges_B)
        batch = everything.at(~judges_B)
        fleet = FleetTeacher.of(context.task, net, state) if work.config.aggregate == "kd" else None
        judged = agreement(net, everything) if work.judges_before else {}
        steps = LocalTraining(net, work.config, fleet, generator, private)
        metrics = steps.run(batch, context.round)
        judged = judged or agreement(net, everything.at(judges_B))
        found = accuracy(net, judged)
        if found is not None:
            metrics |= {"accuracy": found, **{f"{target}/judged": value for target, value in judged.items()}}
        rows = own_features(context.task, net, seen_by(net, batch), batch.truth) if fleet is not None else {}
        last: Tensors = {}
        if work.config.aggregate == "avg" and work.config.last_layer == "both":
            given = flatten({b: t for b, t in state.items() if b in net.blobs and b.startswith("last/")})
            last = steps.train_fleet_last_layers(batch, given, context.round)
        done = _Trained(net.tensors(), last, rows, metrics, found, steps.kept)
        return _result(work, state, private, done)

    def evaluate(self, task: Task, windows: WindowSet, state: Blobs) -> Evaluation:
        """Evaluate a global state on labelled windows, with all their inputs; see ``evaluation.py``.

        Raises:
            Misconfigured: no window is labelled, or the fleet shares no whole model (``last_layer`` private,
                ``aggregate`` kd).
        """
        return evaluated(task, windows, state)

    def inference_model(self, task: Task, state: Blobs) -> RouteModel:
        """The module of the route that a state holds; of several domains, the lowest."""
        return RouteModel(task, subnet(task, state))


@dataclass(frozen=True)
class _Trained:
    """Result of training: parameters, the fleet's last layers, own features, metrics, accuracy, moments."""

    tensors: Tensors
    last: Tensors
    rows: Rows
    metrics: dict[str, float]
    accuracy: float | None
    moments: Tensors


def _result(work: Work, state: Blobs, private: Tensors, done: _Trained) -> LocalResult:
    """The tensors to send and those to keep."""
    task, config = work.context.task, work.config
    psi, keeps, best = _gate(work, state, private, done.accuracy)
    new = done.tensors | psi
    sent = new | done.last
    base = travelling(task, state, work.profile, work.domain)
    values = {
        mean_features.values_name(blob): np.stack(list(own.values())) for blob, own in done.rows.items()
    }
    message = DisentMessage(
        modalities=work.profile.modalities,
        targets=work.profile.targets,
        domain=work.domain,
        best=best,
        accuracy=done.accuracy,
        rows={blob: tuple(own) for blob, own in done.rows.items()},
    )
    seen = {"domain": float(work.domain), "judges": float(work.judges_B.sum())}
    return LocalResult(
        tensors=difference({name: sent[name] for name in base}, base) | values,
        codecs=dict.fromkeys(values, Codec.FLOAT32),
        metrics=work.metrics | done.metrics | seen,
        extra=message.extra(),
        private=kept(config, private, new) | keeps | done.moments,
    )


def _gate(work: Work, state: Blobs, private: Tensors, found: float | None) -> tuple[Tensors, Tensors, int]:
    """The gate after this round, the memory that it was fitted to, and the domain that it now prefers."""
    task, config, profile = work.context.task, work.config, work.profile
    if not gated(config):
        return {}, {}, work.domain
    memory_N2 = domain_gate.memory_of(private, config)
    if found is not None:
        memory_N2 = domain_gate.remembered(memory_N2, work.domain, found, config)
    psi = domain_gate.trained(task, flatten(state), profile, work.windows, memory_N2, config)
    best = int(np.argmax(domain_gate.scores(task, psi, profile, work.windows)))
    return psi, {domain_gate.MEMORY: memory_N2}, best


make_client = DisentAflClient
