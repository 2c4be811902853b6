"""What a round of training leaves on a device is what its exported model answers from."""

from pathlib import Path

import pytest
import torch

from edge_agent.inference.onnx_models.completion_model import CompletionModel
from edge_agent.inference.question_answers import Answers, AskedQuestion
from edge_agent.knowledge_graph.question_file import Question
from edge_agent.knowledge_graph.reader import KnowledgeGraphSnapshot
from edge_agent.storage.private_tensors import PrivateTensors
from export.bundle_builder import Lineage, make_bundle
from models.knowledge_graph.data import embedding_tables
from models.knowledge_graph.data.merging import MergeCounts
from protocol.bundle import unpack
from tests.support.methods.graph_cases import SECRET, random_graph
from tests.support.methods.mmfed3_cases import SPEC, context, keyed, task_of

TOP = 5


@pytest.mark.long
def test_the_exported_model_ranks_a_device_s_entities_as_its_method_does(tmp_path: Path) -> None:
    task = task_of(epochs=30, validation=0.0, fusion="split", lr=0.05)
    graph, client = random_graph(entities=20, relations=4, triples=60), SPEC.client()
    known = keyed(graph, task)
    result = client.train(context(task), known, client.initial(task, 1), {})
    private = PrivateTensors(tmp_path / "private")
    private.write(task.name, result.private)
    data, _ = make_bundle(task, {}, Lineage(1, 1, "0" * 64, None, {}))
    manifest, files = unpack(data)
    (tmp_path / "model.onnx").write_bytes(files["model.onnx"])
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())

    snapshot = KnowledgeGraphSnapshot(
        graph, known, SECRET, MergeCounts(), (), SPEC.kind.told(known, task, ())
    )
    named = [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.triples_N3]
    questions = [Question(h, r) for h, r, _ in named] + [Question(t, r, heads=True) for _, r, t in named]
    model = CompletionModel(tmp_path, 1)
    lines = list(Answers(private).lines(model, AskedQuestion(task, tuple(questions), snapshot, 0.0)))

    tables = embedding_tables.tables(result.private)
    assert tables is not None
    assert tables.entities_EVD.shape[1] == 3, "structure, text and numeric, each a view"
    forth = torch.tensor(graph.triples_N3)
    heads_Q, relations_Q = (
        torch.cat((forth[:, 0], forth[:, 2])),
        torch.cat((forth[:, 1], forth[:, 1] + len(graph.relations))),
    )
    with torch.no_grad():
        _, scores_QK = client.inference_model(task, {})(
            heads_Q, relations_Q, torch.from_numpy(tables.entities_EVD), torch.from_numpy(tables.relations_XC)
        )
    found = 0
    for line, question, answer, scores_K in zip(
        lines, questions, [t for *_, t in named] + [h for h, *_ in named], scores_QK.tolist(), strict=True
    ):
        answers = line["heads" if question.heads else "tails"]
        assert [one["score"] for one in answers] == sorted((one["score"] for one in answers), reverse=True)
        assert max(abs(one["score"] - s) for one, s in zip(answers, scores_K, strict=True)) < 1e-3
        assert all(one["known"] for one in answers if one["entity"] == answer)
        found += answer in [one["entity"] for one in answers[:TOP]]
    assert found > 1.5 * len(lines) * TOP / len(graph.entities), "better than by chance"
