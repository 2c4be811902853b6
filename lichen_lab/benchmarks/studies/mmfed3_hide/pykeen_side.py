"""RotatE as PyKEEN trains it, if it is installed (extra ``pykeen``). Imports torch when it runs.

M. Ali et al., PyKEEN 1.0: A Python Library for Training and Evaluating Knowledge Graph Embeddings, JMLR 22
(2021). Both of its ways to train: sLCWA, each fact with negatives of its own, and LCWA, each question with
all entities.
"""

import time
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

from models.knowledge_graph.data.graph import IntArray

SLCWA: Final = "sLCWA"
LCWA: Final = "LCWA"
_INVERSE: Final[Mapping[str, bool]] = MappingProxyType({SLCWA: False, LCWA: True})
"""Whether inverse relations ask both questions of a fact; sLCWA corrupts heads and tails."""


def here() -> bool:
    """Whether PyKEEN is installed; does not import it."""
    return find_spec("pykeen") is not None


def triples_a_second(
    way: str, triples_N3: IntArray, shape: tuple[int, int], *, dim: int, batch: int, negatives: int
) -> float:
    """Facts a second of an epoch, after one that is not counted.

    Args:
        way: :data:`SLCWA` or :data:`LCWA`.
        triples_N3: training facts.
        shape: entities and relations.
        dim: D; PyKEEN counts complex numbers, half as many.
        batch: facts in a batch.
        negatives: of a fact (sLCWA).
    """
    import torch  # noqa: PLC0415 - only here
    from pykeen import models, training, triples  # noqa: PLC0415 - an extra, and slow to import

    factory = triples.CoreTriplesFactory(
        mapped_triples=torch.tensor(triples_N3),
        num_entities=shape[0],
        num_relations=shape[1],
        create_inverse_triples=_INVERSE[way],
    )
    model = models.RotatE(triples_factory=factory, embedding_dim=dim // 2, loss="crossentropy", random_seed=0)
    given: dict[str, Any] = {
        "model": model,
        "triples_factory": factory,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.001),
    }
    loops = {SLCWA: training.SLCWATrainingLoop, LCWA: training.LCWATrainingLoop}
    if way == SLCWA:
        given["negative_sampler_kwargs"] = {"num_negs_per_pos": negatives}
    loop = loops[way](**given)
    seconds = []
    for epochs in (1, 2):  # in all: the second call trains one more
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pinned memory, without an accelerator
            loop.train(
                triples_factory=factory,
                num_epochs=epochs,
                batch_size=batch,
                use_tqdm=False,
                use_tqdm_batch=False,
                continue_training=epochs > 1,
            )
        seconds.append(time.perf_counter() - began)
    return len(triples_N3) / seconds[-1]
