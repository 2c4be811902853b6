"""What the device keeps of its own training (private tensors), blended into the model that it predicts with.

The method says how (``MethodSpec.blended``); the global half of the blend is what the model holds itself, so
that own and global tensors meet in the version that runs. Nothing here can stop a prediction: what does not
fit is left out, with a log line.
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
    """Keeps a model's own tensors as the private tensors on disk say. Synchronous, for one thread."""

    def __init__(self, private: PrivateTensors) -> None:
        self._private = private
        self._done: object = None

    def refresh(self, model: LoadedModel, task: Task) -> None:
        """Look whether private tensors, model or task are others than last time; if so, blend anew."""
        if not model.overridable:
            self._done = None
            return
        # A weak reference: a model that was replaced must not stay in memory for our sake.
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
        # a route may have nothing of a personal part; another bundle that lacks one is older than the option
        if not private or (lacking and not spec.routed):
            return {}
        blended = spec.blended(task, state, private)
        return flatten({name: blended[name] for name in state if blended[name] is not state[name]})
