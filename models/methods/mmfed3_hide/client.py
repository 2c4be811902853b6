"""The client half of MMFeD3-HidE: completes its knowledge graph, trains its rows. Imports torch."""

import torch

from models.contract import Blobs, ClientContext, Evaluation, LocalResult, Tensors
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.networks.completion import Completer
from models.knowledge_graph.networks.modality_vectors import Projections
from models.methods.mmfed3_hide import METHOD, config_of
from models.methods.mmfed3_hide.messages import projection_blob, projection_name
from models.methods.mmfed3_hide.round import Round
from models.methods.mmfed3_hide.server import graph_of
from models.methods.mmfed3_hide.training_config import score_of, views_of
from models.seeds import derive_seed
from models.training import local
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.tasks.task import Task

_FEWEST = 2
"""Entities that training needs: one alone has no other to compare with."""


class MmFed3Client:
    """See :class:`models.contract.Client`."""

    def initial(self, task: Task, seed: int) -> Blobs:
        """Fresh projections. Rows come with the devices, their first values from the entities' keys."""
        local.start_deterministic(derive_seed(seed, "initial"))
        sizes = {one.name: one.dim for one in graph_of(task).features}
        made = Projections(sizes, config_of(task).dim)
        return {
            projection_blob(name): {
                projection_name(name): layer.get_parameter("weight").detach().numpy().copy()
            }
            for name, layer in zip(made.names, made.weights, strict=True)
        }

    def train(self, context: ClientContext, graph: KeyedGraph, state: Blobs, private: Tensors) -> LocalResult:
        """Train on all triples but those that judge; send rows and projections.

        Metrics: ``loss`` (2) and ``beside``, the further terms of (12), of the last epoch; ``triples`` that
        trained, ``entities``, rows ``sent``; ``mrr``, ``hits1``, ``hits3``, ``hits10`` of the device's model
        on ``judged`` triples that did not train.

        Raises:
            Transient: the knowledge graph has no triple, or one entity.
            Refused: NON_FINITE: training diverged.
        """
        if not len(graph) or len(graph.entity_keys_E16) < _FEWEST:
            raise Transient(
                f"device {context.device!r}, round {context.round}: nothing to learn from: {len(graph)} "
                f"triples of {len(graph.entity_keys_E16)} entities"
            )
        try:
            return Round(context, graph, state, private).run()
        except FloatingPointError as error:
            raise Refused(Reason.NON_FINITE, f"training diverged: {error}") from None

    def evaluate(self, task: Task, graph: KeyedGraph, state: Blobs) -> Evaluation:
        """Nothing: a version has no relations, so it cannot be judged; devices judge their own models.

        Raises:
            Misconfigured: always.
        """
        del graph, state
        raise Misconfigured(
            f"task {task.name!r}: a version of method {METHOD.name!r} holds no relations to judge it by; "
            "what devices report is its figure"
        )

    def inference_model(self, task: Task, state: Blobs) -> torch.nn.Module:
        """Ranks a device's entities by tables that it feeds; the same for all versions."""
        del state
        config, graph = config_of(task), graph_of(task)
        return Completer(score_of(config), views_of(config, len(graph.features)), graph.top_k)


make_client = MmFed3Client
