"""Blends the device's private tensors, from its own training, into the model that it predicts with.

The method defines the blend (``MethodSpec.blended``); its global part comes from the loaded model itself, so
that own and global tensors are of the active version. Nothing here can stop a prediction: tensors that do not
fit are left out, with a log line.
"""

import weakref

import structlog

from edge_agent.inference.onnx_models.window_model import LoadedModel
from edge_agent.storage.private_tensors import PrivateTensors
from models import registry
from models.contract import Tensors
from models.tensors import flatten, unflatten
from protocol.errors import LichenError
from protocol.tasks.task import Task

_log = structlog.get_logger(__name__)


class PersonalTensors:
    """Updates a model's own tensors from the private tensors on disk. Synchronous, for one thread."""

    def __init__(self, private: PrivateTensors) -> None:
        self._private = private
        self._done: object = None

    def refresh(self, model: LoadedModel, task: Task) -> None:
        """Blend again if private tensors, model or task have changed since the last call."""
        if not model.overridable:
            self._done = None
            return
        # A weak reference: a replaced model must not stay in memory because of this.
        now = (weakref.ref(model), task, self._private.revision(task.name))
        if now == self._done:
            return
        self._done = now
        try:
            model.own = self._blended(model, task)
        except LichenError as error:
            model.own = {}
            _log.warning("personal_tensors_not_used", error=str(error))
        else:
            _log.info(
                "personal_tensors_used", used=sorted(unflatten(model.own)), version=model.manifest.version
            )

    def _blended(self, model: LoadedModel, task: Task) -> Tensors:
        """The tensors that differ from the model's."""
        private = model.fitting(self._private.read_some(task.name, model.overridable))
        spec = registry.method(task.method)
        state = unflatten(model.defaults())
        lacking = {*spec.personal(spec.configure(task))} - {blob.split("/", 1)[0] for blob in state}
        # a route may lack the personal part; another bundle that lacks one is older than the option
        if not private or (lacking and not spec.routed):
            return {}
        blended = spec.blended(task, state, private)
        return flatten({name: blended[name] for name in state if blended[name] is not state[name]})
