"""A model of windows in ONNX Runtime; and the manifest of any model.

It runs in a servant (``edge_agent.inference.serving``), not in the agent.

Shapes: B windows, M modalities that it reads, C channels, T samples, K classes of a target.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog
from numpy.typing import NDArray
from pydantic import ValidationError

from edge_agent.inference.onnx_models.compatibility import MODEL_FILE, PRESENT
from edge_agent.inference.onnx_models.session import PASSING, onnx_errors, open_session
from edge_agent.inference.providers.kinds import MAX_ROWS, ON_CPU, Provider
from models.contract import FloatArray, Tensors
from models.tensors import unflatten
from protocol.bundle import BundleManifest
from protocol.errors import Reason, Refused, Transient
from protocol.frames.frame import digest
from protocol.output_names import output_names
from protocol.tasks.task import Target

_log = structlog.get_logger(__name__)
MANIFEST_FILE: Final = "manifest.json"


def read_manifest(folder: Path) -> BundleManifest:
    """The manifest of an unpacked bundle, whose files are checked against it.

    Raises:
        Refused: it is missing or unreadable, or a file was damaged since.
        Transient: it cannot be read now (too many open files, no memory); it may be valid.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = BundleManifest.model_validate_json(path.read_bytes())
        damaged = [
            name for name, ref in manifest.files.items() if digest((folder / name).read_bytes()) != ref.digest
        ]
    except (OSError, ValidationError) as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise Transient(f"{path}: {error}"[:500]) from None
        raise Refused(Reason.MALFORMED, f"{path}: {error}"[:500]) from None
    if damaged:
        raise Refused(Reason.WRONG_DIGEST, f"{folder / damaged[0]} is not what its manifest says")
    return manifest


class OnnxModel:
    """An inference session on a bundle's model.

    Args:
        folder: an unpacked bundle.
        threads: of ONNX Runtime.
        file: which of its models.
        provider: runs it.

    Raises:
        Refused: the file is unsafe (``graph_safety``), does not load, or its inputs or outputs differ from
            its manifest.
    """

    def __init__(
        self, folder: Path, threads: int, file: str = MODEL_FILE, provider: Provider = ON_CPU
    ) -> None:
        self.manifest = read_manifest(folder)
        self.digest = folder.name
        self._max_rows = None if provider.on_cpu else MAX_ROWS
        self._session: Any = open_session(folder, self.manifest, threads, file, provider)

    def _run(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        try:
            answers: list[NDArray[Any]] = self._session.run(list(outputs), dict(feeds))
        except onnx_errors() as error:
            raise Refused(Reason.MALFORMED, f"the model does not run: {error}"[:500]) from None
        return answers

    def _require_names(self, inputs: Collection[str], outputs: Iterable[str]) -> None:
        """Check that the ONNX model has these inputs and no others, and these outputs."""
        found = sorted(i.name for i in self._session.get_inputs())
        if found != sorted(inputs):
            raise Refused(Reason.WRONG_TENSORS, f"the ONNX model's inputs are {found}, not {sorted(inputs)}")
        given = {o.name for o in self._session.get_outputs()}
        if lacking := [name for name in outputs if name not in given]:
            raise Refused(Reason.WRONG_TENSORS, f"the ONNX model has no output {lacking[0]!r}")


class LoadedModel(OnnxModel):
    """A model of windows (:mod:`.completion_model` has the one of knowledge graphs)."""

    def __init__(
        self, folder: Path, threads: int, file: str = MODEL_FILE, provider: Provider = ON_CPU
    ) -> None:
        super().__init__(folder, threads, file, provider)
        self.names = tuple(m.name for m in self.manifest.modalities)
        """Modalities that it reads, in the order of the columns of ``present``."""
        self._answers = {target.name: output_names(target)[0] for target in self.manifest.predicted}
        self._require_inputs()
        self.overridable = self._overridable()
        """Shapes of the tensors that the device may replace, by wire name."""
        self._own: Tensors = {}

    def _overridable(self) -> dict[str, tuple[int, ...]]:
        shapes = {i.name: tuple(i.shape) for i in self._session.get_overridable_initializers()}
        outputs = {o.name for o in self._session.get_outputs()}
        for name in self.manifest.overridable:
            if name not in shapes or name not in outputs:
                raise Refused(
                    Reason.WRONG_TENSORS, f"the manifest calls {name!r} overridable, the ONNX model does not"
                )
        return {name: shapes[name] for name in self.manifest.overridable}

    def _require_inputs(self) -> None:
        expected: dict[str, list[int]] = {
            m.name: [m.channels, self.manifest.samples.get(m.name, 0)] for m in self.manifest.modalities
        }
        expected[PRESENT] = [len(self.names)]
        self._require_names(expected, self._answers.values())
        found = {i.name: list(i.shape[1:]) for i in self._session.get_inputs()}
        for name, dims in expected.items():
            pairs = zip(found[name], dims, strict=False)
            if len(found[name]) != len(dims) or any(isinstance(a, int) and a != b for a, b in pairs):
                raise Refused(
                    Reason.WRONG_TENSORS, f"the ONNX model's input {name!r} is {found[name]}, not {dims}"
                )

    @property
    def own(self) -> Tensors:
        """The device's own tensors, used instead of the ONNX model's; empty if it has none."""
        return self._own

    @own.setter
    def own(self, tensors: Tensors) -> None:
        self._own = self.fitting(tensors)

    def fitting(self, tensors: Tensors) -> Tensors:
        """The tensors that fit the ONNX model; the log names the others.

        The tensors of one blob belong together: if one is missing or invalid, all are left out.
        """
        wanted = unflatten(dict.fromkeys(self.overridable, np.empty(0, np.float32)))
        taken: Tensors = {}
        for blob, names in wanted.items():
            here = [name for name in names if name in tensors]
            wrong = [name for name in names if not self._fits(name, tensors.get(name))]
            if not wrong:
                taken |= {name: np.ascontiguousarray(tensors[name], np.float32) for name in names}
            elif here:
                _log.warning("personal_tensors_do_not_fit", blob=blob, wrong=wrong)
        return taken

    def _fits(self, name: str, value: FloatArray | None) -> bool:
        return value is not None and value.shape == self.overridable[name] and bool(np.isfinite(value).all())

    def defaults(self) -> Tensors:
        """The ONNX model's own values of :attr:`overridable`.

        Raises:
            Refused: ONNX Runtime cannot compute them.
        """
        names = list(self.overridable)
        feeds = self._zeros()
        feeds[PRESENT] = np.zeros((1, len(self.names)), np.float32)
        return dict(zip(names, self._run(names, feeds), strict=True)) if names else {}

    def _zeros(self) -> dict[str, FloatArray]:
        return {
            m.name: np.zeros((1, m.channels, self.manifest.samples[m.name]), np.float32)
            for m in self.manifest.modalities
        }

    def predict(
        self, x: Mapping[str, NDArray[np.float32]], present_BM: NDArray[np.bool_], columns: Sequence[str]
    ) -> dict[str, FloatArray]:
        """Predict for windows, with the device's own tensors if it has some.

        Own tensors that cause a value that is not finite are dropped, with a log line.

        Args:
            x: per modality ``x_BCT`` in raw units.
            present_BM: availability.
            columns: the modality of each of its columns.

        Returns:
            By target, in its unit: of a classification the probabilities ``(B, K)``, of a regression the
            values ``(B,)``, of a generation the windows ``(B, C, T)``.

        Raises:
            Refused: ONNX Runtime cannot run it.
        """
        order = [columns.index(name) for name in self.names]
        feeds = {name: x[name] for name in self.names}
        feeds[PRESENT] = present_BM[:, order].astype(np.float32)
        answers = self._predict(feeds | self._own)
        if self._own and not all(bool(np.isfinite(answer).all()) for answer in answers.values()):
            _log.warning("personal_tensors_not_finite", own=list(self._own))
            self._own = {}
            answers = self._predict(feeds)
        return answers

    def _predict(self, feeds: Mapping[str, NDArray[np.float32]]) -> dict[str, FloatArray]:
        rows, most = len(feeds[PRESENT]), self._max_rows
        if most is None or rows <= most:
            return self._predict_at_once(feeds)
        batched = {PRESENT, *self.names}
        parts = [
            self._predict_at_once(
                {name: value[at : at + most] if name in batched else value for name, value in feeds.items()}
            )
            for at in range(0, rows, most)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in self._answers}

    def _predict_at_once(self, feeds: Mapping[str, NDArray[np.float32]]) -> dict[str, FloatArray]:
        made = self._run(list(self._answers.values()), feeds)
        return {name: np.asarray(value, np.float32) for name, value in zip(self._answers, made, strict=True)}

    def try_once(self) -> None:
        """Run one window of zeros.

        Raises:
            Refused: it fails, or an answer is not finite, or does not have the manifest's shape: a
                probability for each label, one value, a window.
        """
        answers = self.predict(self._zeros(), np.ones((1, len(self.names)), np.bool_), self.names)
        for target in self.manifest.predicted:
            answer, wanted = answers[target.name], self._shape(target)
            if answer.shape != wanted or not np.isfinite(answer).all():
                raise Refused(
                    Reason.WRONG_TENSORS,
                    f"one window gave {self._answers[target.name]} of shape {answer.shape}, not {wanted}, or "
                    "not finite",
                )

    def _shape(self, target: Target) -> tuple[int, ...]:
        """Shape of one window's answer."""
        if target.kind == "classification":
            return (1, len(target.labels))
        made = {m.name: m for m in self.manifest.generated or ()}.get(target.modality or "")
        return (1,) if made is None else (1, made.channels, self.manifest.samples.get(made.name, 0))
