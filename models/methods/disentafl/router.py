"""DomGate and IoGate on the device: which blobs it fetches. NumPy only."""

from models.contract import Blobs, ClientContext, Profile, Tensors, WindowSet
from models.methods.disentafl.routing import domain_gate
from models.methods.disentafl.routing.blob_names import config_of, first, gated, known, route
from models.tensors import flatten
from protocol.tasks.task import LABEL, Task


def profile_in(context: ClientContext, windows: WindowSet) -> Profile:
    """The device's profile, as far as the task has it; without one, what its windows have, and ``label``."""
    if context.profile is not None:
        return known(context.task, context.profile)
    have = (name for m, name in enumerate(context.task.modality_names) if windows.present_BM[:, m].any())
    return known(context.task, Profile(tuple(have), (LABEL,)))


class DisentAflRouter:
    """See :class:`models.contract.Router`."""

    def first(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """The domain gate's networks of the device's modalities (psi)."""
        return first(task, profile)

    def choose(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> tuple[str, ...]:
        """The device's route through one domain, the same for all of its modalities."""
        del private  # what was seen is in psi already
        task, config, profile = context.task, config_of(context.task), profile_in(context, windows)
        domain = 0
        if gated(config):
            domain = domain_gate.choose(
                domain_gate.scores(task, flatten(state), profile, windows), config, context
            )
        return route(task, profile, (domain,))


make_router = DisentAflRouter
