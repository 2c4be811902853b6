"""The client of a Ray cluster; the only module that imports ``ray``, in a child process of the coordinator.

Ray repeats a task whose node or process is lost. A head that is gone is not reported by Ray for a minute or
more: this module asks its port while it waits.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

from coordinator.compute import node_tasks
from coordinator.compute.node_tasks import Failure
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.process.worker import Unreachable

LOCAL: Final = "local"
AUTO: Final = "auto"
_REPEATS: Final = 3
"""How often Ray repeats a task whose process died; the job as a whole is tried again after that."""
_BEAT_S: Final = 2.0
_CONNECT_S: Final = 5.0
_FIRST_PAGES: Final = 256 * 1024 * 1024
"""The object store of a local cluster; beyond it Ray uses the disk."""


class ProcessLost(Transient):
    """A process of the cluster ended, with what was in it."""


class Cluster:
    """A connection to a cluster.

    Args:
        address: as ``compute.ray``.
        key: what names the address, for messages.

    Raises:
        Misconfigured: Ray is not installed, or its release is not the cluster's.
        Unreachable: nothing answers at the address, or the cluster has no CPU.
    """

    def __init__(self, address: str, key: str = "compute.ray =") -> None:
        if find_spec("ray") is None:
            raise Misconfigured(
                f"{key} {address!r} needs Ray, which is not installed here: pip install 'lichen[ray]'"
            )
        import ray  # noqa: PLC0415 - only this process pays for it, and only if it is asked for

        self._ray = ray
        self._address, self._name = address, f"{key} {address!r}"
        self._head: tuple[str, int] | None = None
        if address not in {LOCAL, AUTO}:
            self._head = _host_and_port(address)
            self._require_head()
        self._connect()
        if address != LOCAL:
            self._head = _host_and_port(ray.get_runtime_context().gcs_address)
        self._code = node_tasks.code_digest()
        self._run = ray.remote(node_tasks.guarded)
        found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.cpus = int(found.get("CPU", 0))
        """Of all nodes, at the time of the connection."""
        if not self.cpus:
            raise Unreachable(f"{self._name}: the cluster has no node with a CPU")

    def _connect(self) -> None:
        options: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": "ERROR",
            "configure_logging": False,
        }
        if self._address == LOCAL:
            options |= {"address": LOCAL, "include_dashboard": False, "object_store_memory": _FIRST_PAGES}
        else:
            options |= {"address": self._address}
        try:
            self._ray.init(**options)
        except ConnectionError as error:
            hint = (
                "" if self._head is None else "; the head answers: do both have Ray's authentication token?"
            )
            raise Unreachable(f"{self._name}: {_line(error)}{hint}") from None
        except (RuntimeError, ValueError) as error:  # another release, or this machine is no node
            raise Misconfigured(f"{self._name}: {_line(error)}") from None

    def put(self, value: object) -> Any:
        """Store a value in the cluster once, for any number of tasks; returns what to pass to them."""
        return self._ray.put(value)

    def submit(self, body: str, *arguments: Any, cpus: int = 1) -> Any:
        """Start a function of :mod:`coordinator.compute.node_tasks`; returns a handle of its result."""
        return self._run.options(num_cpus=cpus, max_retries=_REPEATS).remote(self._code, body, *arguments)

    def actor(self, kind: type, *arguments: Any) -> Any:
        """Start an object in a process of its own, which has one CPU; ``handle.method.remote()`` calls it."""
        return self._ray.remote(kind).options(num_cpus=1).remote(*arguments)

    def first_of(self, handles: list[Any]) -> Any:
        """Wait until a task is done, and return its handle.

        Raises:
            Unreachable: the cluster is gone.
        """
        while True:
            done, _ = self._ray.wait(handles, num_returns=1, timeout=_BEAT_S)
            if done:
                return done[0]
            self._require_head()

    def result(self, handle: Any) -> Any:
        """The result of a task that is done.

        Raises:
            Misconfigured, Refused, Transient: as the task; Transient also if it was lost several times.
            ProcessLost: an actor's.
            Unreachable: the cluster is gone.
            RuntimeError: a bug of this program.
        """
        try:
            found = self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            raise _of_task(error) from None
        except self._ray.exceptions.RayError as error:
            self._require_head()
            if isinstance(error, self._ray.exceptions.RayActorError):
                raise ProcessLost(_line(error)) from None
            words = f"{self._name}: a task was lost {_REPEATS + 1} times: {_line(error)}"
            raise Transient(words) from None
        return _checked(found)

    def results(self, handles: list[Any]) -> Iterator[Any]:
        """The results of all, in the order in which they are done; raises as :meth:`result`."""
        left = list(handles)
        while left:
            done = self.first_of(left)
            left.remove(done)
            yield self.result(done)

    def close(self) -> None:
        """End the connection; a local cluster ends with it."""
        with suppress(Exception):  # the process ends next, whatever Ray says
            self._ray.shutdown()

    def _require_head(self) -> None:
        if self._head is None:
            return
        try:
            socket.create_connection(self._head, timeout=_CONNECT_S).close()
        except OSError as error:
            host, port = self._head
            raise Unreachable(
                f"{self._name}: no Ray head answers at {host}:{port} ({_line(error)})"
            ) from None


def _checked(found: Any) -> Any:
    if not isinstance(found, Failure):
        return found
    match found.kind:
        case "Refused":
            raise Refused(Reason(found.reason), found.words)
        case "Misconfigured":
            raise Misconfigured(found.words)
        case _:
            raise Transient(found.words)


def _of_task(error: Exception) -> Exception:
    cause = getattr(error, "cause", None)
    if isinstance(cause, ImportError) or "failed to import on the worker" in str(error):
        return Misconfigured(
            "compute.ray: a node of the cluster cannot import lichen: install the coordinator's release "
            f"there ({_line(cause or error)})"
        )
    return RuntimeError(f"a task on the cluster failed: {error}")


def _host_and_port(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
