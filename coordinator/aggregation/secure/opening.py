"""From masked updates and the devices' answers to a version. NumPy; runs in a thread."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from coordinator.aggregation.fold import close_fold, open_fold
from coordinator.fleet.serving_routes import routing
from coordinator.secure_aggregation.book import AttemptBook
from coordinator.secure_aggregation.events import SecureRules, SecureState
from coordinator.storage.update_journal import AcceptedUpdate
from models.aggregation.masked_sums import absorb_vector, layout_of
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Profile, Server
from models.privacy.shared_noise import shared_noise
from protocol.errors import Reason, Refused
from protocol.frames.frame import Limits, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, Encoded
from protocol.secure_aggregation.ring import Words, unpacked, zeros
from protocol.secure_aggregation.updates import MASKED, ROUTE
from protocol.tasks.folding import SecureAggregation
from protocol.tasks.task import Task


class SumOpener:
    """Reads masked vectors, and makes a version of their sum.

    Args:
        task: with ``secure_aggregation``.
        options: of the task.
        server: the method's server half.
    """

    def __init__(self, task: Task, options: SecureAggregation, server: Server) -> None:
        self._task, self._options, self._server = task, options, server
        self._routed = routing(server)
        self._noise = shared_noise(task)
        self._size: tuple[str, int] = ("", 0)
        """By manifest, of the newest version alone."""

    def vector(self, base: str, model: Blobs, tensors: Mapping[str, Encoded]) -> Words:
        """The masked vector of an update.

        Args:
            base: digest of the manifest of ``model``.
            model: the version that the update starts from.
            tensors: of the update.

        Raises:
            Refused: there are other tensors, or its length is wrong.
        """
        found = tensors.get(MASKED)
        if found is None or len(tensors) != 1 or found.codec is not Codec.UINT8:
            words = f"rounds of task {self._task.name!r} are secure: the only tensor is {MASKED!r}"
            raise Refused(Reason.WRONG_TENSORS, words)
        if self._size[0] != base:
            fold = self._server.open(self._task, 1, model)
            self._size = base, layout_of(fold, noisy=self._noise is not None).size
        return unpacked(found.data, self._size[1], self._options.ring_bits)

    def check_message(self, extra: Mapping[str, JsonValue]) -> None:
        """Check what a masked update tells beside its attempt: of a routed method its route, else nothing.

        Raises:
            Refused: it tells more, or its route is none.
        """
        if not extra:
            return
        if self._routed is None or extra.keys() != {ROUTE}:
            words = "the header of a masked update names its attempt and, of a routed method, its route alone"
            raise Refused(Reason.MALFORMED, f"extra: {words}")
        route, task, read = extra[ROUTE], self._task, None
        try:
            if isinstance(route, dict):
                read = self._routed.serving_message(route)
                self._routed.serving_route(task, Profile(task.input_names, task.target_names), read)
        except Refused as refused:
            raise Refused(refused.reason, f"extra.{ROUTE}: {refused.detail.removeprefix('extra.')}") from None
        if read is None or read != route:
            raise Refused(Reason.MALFORMED, f"extra.{ROUTE}: more than what determines the device's bundle")

    def version(
        self,
        ended: tuple[SecureRules, SecureState, AttemptBook],
        whole: Blobs,
        entries: Sequence[AcceptedUpdate],
        limits: Limits,
    ) -> Blobs:
        """The next version, from the sum of the survivors' vectors.

        Args:
            ended: an attempt in phase ``DONE``, with the answers.
            whole: the version that the updates start from, with moments.
            entries: accepted masked updates; those of others than survivors are left out.
            limits: of an update.

        Raises:
            Refused: an update is gone, or a device has lied.
        """
        rules, state, book = ended
        attempt, model = book.attempt, model_of(whole)
        inside = [entry for entry in entries if entry.device in state.survivors]
        if len(inside) != len(state.survivors):
            raise Refused(Reason.WRONG_DIGEST, "masked updates of survivors are gone from the journal")
        fold = open_fold(self._server, self._task, attempt.round, model, None)
        layout = layout_of(fold, noisy=self._noise is not None)
        total_N = zeros(layout.size, self._options.ring_bits)
        for entry in inside:
            _, tensors = open_frame(entry.frame.verified(), UpdateHeader, limits)
            total_N += self.vector(attempt.base, model, tensors)
        book.remove_masks(rules, state, total_N)
        largest = None if self._noise is None else self._noise.reach(len(inside))
        absorb_vector(fold, layout, self._options, total_N, len(inside), largest=largest)
        return close_fold(self._task, whole, fold, None, ())
