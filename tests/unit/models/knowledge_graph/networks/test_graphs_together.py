"""Equation (12) on one client: scores, fusion, imputation and distillation in one epoch after another."""

import pytest
import torch

from models.knowledge_graph.networks.fusion import FUSIONS, log_probabilities
from models.knowledge_graph.networks.imputation import IMPUTERS, ImputerSettings, hidden
from models.knowledge_graph.networks.modality_vectors import Projections, with_structure
from models.knowledge_graph.networks.sparse_embedding import Descent, EmbeddingRows
from models.knowledge_graph.networks.triple_scores import SCORES
from models.knowledge_graph.training.distillation import feature_distillation, logit_distillation
from models.knowledge_graph.training.epoch import completion, epoch
from models.knowledge_graph.training.known_answers import KnownAnswers, questions
from models.knowledge_graph.training.negatives import Shared
from models.training.local import Adam, start_deterministic
from tests.support.methods.graph_cases import random_graph

GRAPH = random_graph()
PRESENT_EM = torch.tensor(GRAPH.present_EM)
FEATURES = {name: torch.tensor(x_EF) for name, x_EF in GRAPH.features.items()}
ASKED_Q3 = questions(GRAPH.triples_N3, len(GRAPH.relations))
KNOWN = KnownAnswers([ASKED_Q3], len(GRAPH.entities), len(GRAPH.relations))
DIM = 16


class Side:
    """Structural embeddings, projections and fusion: of the client, or of its copy of the fleet's model."""

    def __init__(self, score, generator, fusion):
        self.structure = EmbeddingRows(score.initial(len(GRAPH.entities), generator), lr=0.02)
        self.projections = Projections({name: x_EF.shape[1] for name, x_EF in FEATURES.items()}, DIM)
        self.phi = FUSIONS[fusion](3, DIM)

    def parts(self, rows_U):
        features = {name: x_EF[rows_U] for name, x_EF in FEATURES.items()}
        return self.projections(self.structure.take(rows_U), features, PRESENT_EM[rows_U])


class Client:
    """MMFeD3 with any imputer."""

    def __init__(self, imputer, fusion, seed=3):
        self.generator = start_deterministic(seed)
        self.score = SCORES["rotate"](DIM, 6.0)
        self.own, self.fleet = (Side(self.score, self.generator, fusion) for _ in range(2))
        relations = self.score.initial(2 * len(GRAPH.relations), self.generator, relations=True)
        self.relations = EmbeddingRows(relations, lr=0.02)
        of = ImputerSettings(widths=(24, 16), blocks=2, steps=3, step_dim=4, unit=0.3)
        self.imputer = IMPUTERS[imputer](3 * DIM, of)
        sides = [part for side in (self.own, self.fleet) for part in (side.projections, side.phi)]
        self.dense = torch.nn.ModuleList([*sides, self.imputer])
        adam = Adam(self.dense.parameters(), lr=0.01)
        self.descent = Descent(self.own.structure, self.fleet.structure, self.relations, dense=adam)

    def embed(self, rows_U):
        self.h_UPD, self.present_UP = self.own.parts(rows_U), with_structure(PRESENT_EM[rows_U])
        full_UPD = self.imputer(self.h_UPD, self.present_UP, self.generator)
        self.e_UVD = self.own.phi(full_UPD)
        return self.e_UVD[:, 0]

    def beside(self, batch, _, r_BC, logits_BL):
        fleet_UVD = self.fleet.phi(self.fleet.parts(batch.rows_U), self.present_UP)
        fleet_BL = batch.logits(self.score, fleet_UVD[:, 0], r_BC)
        seen_UP = hidden(self.present_UP, 0.3, self.generator)
        made = self.imputer.loss(self.h_UPD, self.present_UP, self.generator, seen_UP)
        logits = logit_distillation(*(log_probabilities(x_BL[None]) for x_BL in (logits_BL, fleet_BL)))
        return completion(fleet_BL) + made + logits + 0.1 * feature_distillation(self.e_UVD, fleet_UVD)

    def epoch(self):
        return epoch(
            ASKED_Q3,
            self.embed,
            self.relations,
            score=self.score,
            draw=Shared(16, KNOWN),
            descent=self.descent,
            generator=self.generator,
            size=256,
            beside=self.beside,
        )

    def tensors(self):
        tables = [table.value_ED for table in (self.own.structure, self.fleet.structure, self.relations)]
        return [x.detach().clone() for x in (*tables, *self.dense.parameters())]


@pytest.mark.parametrize(
    ("imputer", "fusion"), [("hide", "gated"), ("hide", "weighted"), ("ae", "average"), ("mmin", "concat")]
)
def test_12_everything_that_learns_moves_and_both_losses_fall(imputer, fusion):
    client = Client(imputer, fusion)
    before, first = client.tensors(), client.epoch()
    for _ in range(7):
        last = client.epoch()
    assert last.loss < first.loss
    assert last.beside < first.beside
    pairs = list(zip(before, client.tensors(), strict=True))
    assert [i for i, (old, new) in enumerate(pairs) if torch.equal(old, new)] == []
    assert all(bool(torch.isfinite(new).all()) for _, new in pairs)


def test_12_the_same_seed_gives_the_same_bytes():
    one, same, other = (Client("hide", "gated", seed) for seed in (3, 3, 4))
    for client in (one, same, other):
        client.epoch()
    assert all(torch.equal(x, y) for x, y in zip(one.tensors(), same.tensors(), strict=True))
    assert not torch.equal(one.tensors()[0], other.tensors()[0])


def test_2_of_several_views_is_the_log_of_their_mean_probability():
    scores_VBL = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    expected = -scores_VBL.softmax(dim=2).mean(dim=0)[:, 0].log().mean()
    torch.testing.assert_close(completion(log_probabilities(scores_VBL)), expected)
