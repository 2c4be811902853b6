"""A daemon from start to end: one TaskGroup, signals, a correct exit status, systemd's watchdog."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

import structlog

from protocol.errors import Misconfigured, Transient
from runtime import exit_codes
from runtime.process.systemd_notify import Notifier

_log = structlog.get_logger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Finished(Exception):  # noqa: N818 - not an error: a service reports that the daemon's work is done
    """Raised by a service: stop everything in order, exit status 0."""


class Progress:
    """Completed steps and running work, for the watchdog.

    A daemon without work completes nothing and is healthy; a daemon that started work and does not end it
    hangs. :meth:`work` tells the two apart.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._now = now
        self._under_way: dict[str, float] = {}

    def tick(self, what: str = "") -> None:
        """Count a completed step: a message handled, a window cut, a round step made.

        Args:
            what: the :meth:`work` that the step belongs to; its time starts again.
        """
        self.count += 1
        if what in self._under_way:
            self._under_way[what] = self._now()

    @contextlib.contextmanager
    def work(self, what: str) -> Iterator[None]:
        """Work that must come to an end; one at a time under each name."""
        self._under_way[what] = self._now()
        try:
            yield
        finally:
            self._under_way.pop(what, None)
            self.tick()

    def hanging(self, patience_s: float) -> str:
        """A message about work without a step for longer than ``patience_s``; empty if nothing hangs."""
        now = self._now()
        hanging = {what: now - since for what, since in self._under_way.items() if now - since > patience_s}
        return ", ".join(f"{what} hangs for {seconds:.0f} s" for what, seconds in hanging.items())


async def supervise(
    services: Mapping[str, Callable[[], Awaitable[None]]],
    *,
    on_stop: Callable[[], Awaitable[None]] | None = None,
    stop_timeout_s: float = 10.0,
    notify: Notifier | None = None,
    progress: Progress | None = None,
    alive: Callable[[float], Awaitable[str]] | None = None,
) -> int:
    """Run services until a signal, until all have returned, or until one fails.

    Args:
        services: name -> ``run``. If one returns, the others continue; if one raises :class:`Finished`, the
            daemon ends in order.
        on_stop: awaited first at an orderly stop (farewell, flush), for at most half of ``stop_timeout_s``; a
            second signal cuts it short.
        stop_timeout_s: if anything still runs after it, the exit status is not 0.
        notify: the channel to systemd.
        progress: feeds the watchdog when its count has changed. Without it, and without ``alive``, a running
            event loop counts as progress.
        alive: called instead, four times per watchdog interval, with the seconds that it may take and that a
            piece of work may hang. It returns a message if the daemon hangs: then the watchdog is not fed.

    Returns:
        0 after an orderly stop; 78 when a service raised ``Misconfigured``; 75 after ``Transient``; 70 after
        any other error, and when services did not end in time.
    """
    notify = notify or Notifier()
    stop, hurry = asyncio.Event(), asyncio.Event()
    with _signals(stop, hurry):
        group = asyncio.ensure_future(_run_group(services, stop, notify, progress, alive))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([group, stopping], return_when=asyncio.FIRST_COMPLETED)
            notify.stopping()
            if not group.done() or (not group.cancelled() and group.exception() is None):
                _log.info("stopping")
                await _bounded(on_stop, hurry, stop_timeout_s / 2)
        finally:
            stopping.cancel()
            group.cancel()
            await asyncio.wait([group], timeout=stop_timeout_s / 2)
    if not group.done():
        _log.error("services_did_not_stop", seconds=stop_timeout_s)
        return exit_codes.SOFTWARE
    return _status(group)


async def _run_group(
    services: Mapping[str, Callable[[], Awaitable[None]]],
    stop: asyncio.Event,
    notify: Notifier,
    progress: Progress | None,
    alive: Callable[[float], Awaitable[str]] | None,
) -> None:
    """The daemon's only TaskGroup."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_service(name, run, stop), name=name) for name, run in services.items()]
        await asyncio.sleep(0)
        notify.ready()
        feeding = _watchdog(notify, progress) if alive is None else _feed_while_alive(notify, alive)
        watchdog = group.create_task(feeding, name="watchdog")
        await asyncio.wait(tasks)
        watchdog.cancel()


async def _service(name: str, run: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    try:
        await run()
    except Finished as done:
        _log.info("finished", service=name, words=str(done))
        stop.set()
    except Exception as error:
        error.add_note(f"in service {name!r}")
        raise


async def _watchdog(notify: Notifier, progress: Progress | None) -> None:
    if notify.watchdog_s is None:
        return
    notify.watchdog()
    last_count = None if progress is None else progress.count
    while True:
        await asyncio.sleep(notify.watchdog_s / 4)
        if progress is None or progress.count != last_count:
            last_count = None if progress is None else progress.count
            notify.watchdog()


async def _feed_while_alive(notify: Notifier, alive: Callable[[float], Awaitable[str]]) -> None:
    """Feed the watchdog while ``alive`` reports nothing; log each new reason not to once."""
    if notify.watchdog_s is None:
        return
    pause_s, reported = notify.watchdog_s / 4, ""
    while True:
        try:
            async with asyncio.timeout(pause_s):
                why = await alive(pause_s)
        except TimeoutError:
            why = f"no answer in {pause_s:g} s whether all is well"
        if not why:
            notify.watchdog()
        elif why != reported:
            _log.error("hanging", detail="systemd ends this process if it lasts", why=why)
        reported = why
        await asyncio.sleep(pause_s)


async def _bounded(
    on_stop: Callable[[], Awaitable[None]] | None, hurry: asyncio.Event, seconds: float
) -> None:
    """Await ``on_stop``: at most ``seconds``, and not after a second signal. Its errors are only logged."""
    if on_stop is None:
        return
    task, cut = asyncio.ensure_future(on_stop()), asyncio.ensure_future(hurry.wait())
    await asyncio.wait([task, cut], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if not task.done():
        _log.warning("goodbye_timed_out", after_s=seconds)
        task.cancel()
        await asyncio.wait([task], timeout=1.0)
    elif not task.cancelled() and task.exception() is not None:
        _log.warning("goodbye_failed", error=str(task.exception()))


@contextlib.contextmanager
def _signals(stop: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        _log.info("signal", name=number.name)
        (hurry if stop.is_set() else stop).set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _status(group: "asyncio.Task[None]") -> int:
    if group.cancelled() or (error := group.exception()) is None:
        return exit_codes.OK
    if not isinstance(error, Exception):  # nobody's error: a test's limit of time, an interpreter that ends
        raise error
    return report(error)


def report(error: BaseException) -> int:
    """Log an error, or each one of a group, and return its exit status."""
    errors = list(each_error(error))
    wrong = [e for e in errors if isinstance(e, Misconfigured)]
    for mistake in wrong:
        _log.error("misconfigured", error=str(mistake))
    if wrong:
        return exit_codes.CONFIG
    if all(isinstance(e, Transient) for e in errors):
        for one in errors:
            _log.error("cannot_run_now", detail="start it again later", error=str(one))
        return exit_codes.TEMPFAIL
    for one in errors:
        _log.error("failed", error=f"{type(one).__name__}: {one}", exc_info=one)
    return exit_codes.SOFTWARE


def each_error(error: BaseException) -> Iterator[BaseException]:
    """An error itself, or each one of a group."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from each_error(one)
    else:
        yield error


def run(main: Callable[[], Coroutine[Any, Any, int]], *, exit_grace_s: float = 5.0) -> int:
    """Run a daemon's main coroutine (on uvloop if it is installed) and return its exit status.

    ``Misconfigured`` from it gives 78, ``Transient`` (a full disk) 75, any other error is logged and gives
    70. If a thread hangs afterwards, the process still ends after ``exit_grace_s``, with that status.
    """
    guard: threading.Timer | None = None
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                status = runner.run(main())
            except KeyboardInterrupt:
                status = exit_codes.OK
            except Exception as error:  # noqa: BLE001 - the last handler: logs the error and returns an exit status
                status = report(error)
            guard = threading.Timer(exit_grace_s, _exit, (status,))
            guard.daemon = True
            guard.start()
    finally:
        if guard is not None:
            guard.cancel()
    return status


def _exit(status: int) -> None:
    _log.error("thread_left_behind", detail="a thread did not end")
    sys.stderr.flush()
    os._exit(status)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - it has no armv7 wheel
    except ImportError:
        return None
    return uvloop.new_event_loop
