"""The process of one model: opens it, tries it once, answers until the other side closes.

Requests (``op``): ``look`` (for the accelerator of a provider), ``open`` (which model, where private tensors
are), ``task``, ``predict`` (arrays: the modalities and ``present``), ``ask`` (questions by key), ``features``
(an encoder's ONNX model or a backbone, ``edge_agent.inference.onnx_models``). An answer with ``refused`` and
``words`` is a refusal.
"""

import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.inference.onnx_models.backbone import FileBackbone
from edge_agent.inference.onnx_models.compatibility import PRESENT
from edge_agent.inference.onnx_models.completion_model import CompletionModel
from edge_agent.inference.onnx_models.embedding_lookup import KeyedQuestions, TableReader
from edge_agent.inference.onnx_models.encoder_model import EncoderModel
from edge_agent.inference.onnx_models.loader import Model, load
from edge_agent.inference.onnx_models.personal_tensors import PersonalTensors
from edge_agent.inference.onnx_models.window_model import LoadedModel
from edge_agent.inference.providers.kinds import Provider
from edge_agent.inference.providers.loading import hardware_of
from edge_agent.inference.serving.codec import Header, MessageReader, send
from edge_agent.inference.serving.confinement import confine_for
from edge_agent.storage.private_tensors import PrivateTensors
from models.worker.job_loop import trim_memory
from protocol.errors import LichenError, Reason, Refused
from protocol.tasks.task import Modality, Task
from runtime import exit_codes

_Given = dict[str, NDArray[Any]]
GRAPH: Final = "graph"
LOOK: Final = "look"
BACKBONE: Final = "backbone"
"""Field of ``open``: the file in the folder; ``modality`` and ``samples`` say what it is for."""
WINDOWS: Final = ""
"""Name of the windows' array, beside the tensors of an encoder."""
FEATURE: Final = "feature"
RAN: Final = ""
"""Field of an answer: seconds that ONNX Runtime took."""
_NOT_OPEN: Final = "no model is open"


class ModelServer:
    """One model, one encoder model, or one backbone."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._graph: EncoderModel | FileBackbone | None = None
        self._task: Task | None = None
        self._personal: PersonalTensors | None = None
        self._tables: TableReader | None = None

    def answer(self, header: Header, given: _Given) -> tuple[Header, _Given]:
        """Answer one request; a refusal is an answer too."""
        try:
            return _DO[header["op"]](self, header, given)
        except Refused as error:
            return {"refused": error.reason.value, "words": error.detail}, {}
        except (LichenError, MemoryError, OSError) as error:
            words = f"{error}" or "there is not enough memory"
            return {"refused": Reason.MALFORMED.value, "words": words[:500]}, {}

    def open(self, header: Header, given: _Given) -> tuple[Header, _Given]:
        """Load and try a model, an encoder model (array ``graph``), or a backbone (field ``backbone``)."""
        if GRAPH in given:
            self._graph = EncoderModel(given[GRAPH].tobytes(), header["threads"])
            return {"dim": self._graph.dim}, {}
        if BACKBONE in header:
            path, modality = (
                Path(header["folder"]) / header[BACKBONE],
                Modality.model_validate_json(header["modality"]),
            )
            self._graph = FileBackbone(path, modality, header["samples"], header["threads"])
            trim_memory()
            return {"dim": self._graph.dim}, {}
        model = load(Path(header["folder"]), header["threads"], header["file"], Provider.of(header))
        model.try_once()
        trim_memory()  # free what parsing and optimizing the ONNX model left behind
        self._model = model
        if header["private"] is not None:
            private = PrivateTensors(Path(header["private"]))
            self._personal, self._tables = PersonalTensors(private), TableReader(private)
        return {}, {}

    def look(self, header: Header, _: _Given) -> tuple[Header, _Given]:
        """Find the accelerator of a provider; a package is imported for that."""
        kind, found = hardware_of(Provider.of(header))
        return {
            "runs": kind.provider,
            "compiles": kind.engine != "none",
            "device": found.device,
            "versions": tuple(sorted(found.versions.items())),
        }, {}

    def use(self, header: Header, _: _Given) -> tuple[Header, _Given]:
        """Use the own tensors of this task from now on."""
        self._task = Task.model_validate_json(header["task"])
        return {}, {}

    def predict(self, _: Header, given: _Given) -> tuple[Header, _Given]:
        """Answers by target."""
        model = self._model
        if not isinstance(model, LoadedModel):
            raise Refused(Reason.WRONG_TENSORS, _NOT_OPEN)
        if self._personal is not None and self._task is not None:
            self._personal.refresh(model, self._task)
        present_BM = given.pop(PRESENT)
        began = time.perf_counter()
        answers = model.predict(given, present_BM, model.names)
        ran_s = time.perf_counter() - began
        return {"own": bool(model.own)}, {**answers, RAN: np.array(ran_s, np.float32)}

    def ask(self, _: Header, given: _Given) -> tuple[Header, _Given]:
        """Answers by key."""
        model, tables, task = self._model, self._tables, self._task
        if not isinstance(model, CompletionModel) or tables is None or task is None:
            raise Refused(Reason.WRONG_TENSORS, _NOT_OPEN)
        found = tables.answer(
            model, task.name, KeyedQuestions(given["entity"], given["relation"], given["inverse"])
        )
        answers: _Given = {
            "state": found.state_B,
            "tails": found.tails_NK,
            "keys": found.keys_NK16,
            "scores": found.scores_NK,
        }
        return {"own": model.own, "why": found.why}, answers

    def features(self, _: Header, given: _Given) -> tuple[Header, _Given]:
        """Features of windows, with an encoder's tensors; of a backbone without."""
        if self._graph is None:
            raise Refused(Reason.WRONG_TENSORS, _NOT_OPEN)
        x_BCT = given.pop(WINDOWS)
        return {}, {FEATURE: self._graph.run(x_BCT, given)}


_DO: Final = {
    "open": ModelServer.open,
    LOOK: ModelServer.look,
    "task": ModelServer.use,
    "predict": ModelServer.predict,
    "ask": ModelServer.ask,
    "features": ModelServer.features,
}


def serve(sock: socket.socket, *, alone: bool = False) -> int:
    """Answer until the other side closes. Returns the exit status.

    Args:
        sock: of the agent.
        alone: the process is only for this model, and gives up other access
            (``edge_agent.inference.serving.confinement``).
    """
    servant, reader = ModelServer(), MessageReader(sock)
    try:
        while (asked := reader.message()) is not None:
            if alone and asked[0].get("op") in {"open", LOOK}:
                confine_for(asked[0])
            send(sock, *servant.answer(*asked))
    except (Refused, ConnectionError) as error:  # the agent died in the middle of a message
        sys.stderr.write(f"{error}\n")
        return exit_codes.DATAERR
    return exit_codes.OK


def live(sock: socket.socket) -> None:
    """Run a servant until its exit; does not return. An unexpected error ends it, with a traceback."""
    status = exit_codes.SOFTWARE
    try:
        status = serve(sock, alone=True)
    except BaseException:  # noqa: BLE001 - the last place: in a forked process nothing may rise further
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
