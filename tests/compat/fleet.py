"""A small fleet of real processes whose releases can be changed between rounds; its state folders stay."""

import asyncio
import contextlib
import json
import signal
import subprocess
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lichen_lab.benchmarks.fault_injection.harness import small_fleet
from lichen_lab.benchmarks.fault_injection.harness.small_fleet import FLEET, task, write
from lichen_lab.simulation.processes.fleet_files import write_toml
from runtime.fleet_view import FleetView
from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings
from tests.compat.trees import Tree

DEVICES = ("d1", "d2")
_PATIENCE_S = 120.0


class Fleet:
    """Two devices that train, and a coordinator."""

    def __init__(self, root: Path, port: int) -> None:
        self.layout = small_fleet.files(root, port, DEVICES)
        self.view = FleetView(FLEET)
        # until both have delivered: it also passes while processes are changed
        self.task = task(50, 2, 1, quorum=1.0, min_devices=1, deadline_s=600.0)
        write(self.layout, self.task, 1, {"coordinator": {"exit_when_done": False}})
        config = self.layout.config("coordinator")
        settings = tomllib.loads(config.read_text())
        del settings["evaluation"]  # nothing is judged: that would start another process
        write_toml(config, settings)
        self.announce()
        self._news = asyncio.Event()
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def _require_all_to_run(self) -> None:
        ended = [name for name, process in self._started.items() if process.poll() is not None]
        assert not ended, f"ended by themselves: {ended}"

    def announce(self, **keys: Any) -> None:
        """Change keys of the task's file."""
        table = self.task.model_dump(mode="json", exclude_defaults=True) | keys
        write_toml(self.layout.config("task"), table)

    @asynccontextmanager
    async def running(self, coordinator: Tree, agents: Mapping[str, Tree]) -> AsyncIterator[None]:
        """The processes of these releases, ended in order."""
        commands = {"coordinator": (coordinator, ("coordinator", "serve"))}
        commands |= {name: (tree, ("agent", "run")) for name, tree in agents.items()}
        self._started = started = {
            name: self._start(name, tree, *words) for name, (tree, words) in commands.items()
        }
        watching = asyncio.create_task(self._watch())
        try:
            yield
            self._require_all_to_run()
        finally:
            watching.cancel()
            for process in reversed(started.values()):
                process.send_signal(signal.SIGTERM)
            for name, process in started.items():
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(5)
                    raise AssertionError(f"{name} did not end: {self.log(name)[-2000:]}") from None

    def _start(self, name: str, tree: Tree, *words: str) -> subprocess.Popen[bytes]:
        command = tree.command(*words, "--config", str(self.layout.config(name)))
        self.layout.log(name).parent.mkdir(exist_ok=True)
        with self.layout.log(name).open("ab") as log:
            return subprocess.Popen(
                command,
                env=tree.environment,
                cwd=self.layout.root,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    async def _watch(self) -> None:
        settings = MqttSettings(port=self.layout.port, backoff_min_s=0.05, backoff_max_s=0.2)
        link = Link(settings, "onlooker", filters=list(self.view.filters()))
        async with asyncio.TaskGroup() as group:
            group.create_task(link.run())
            async for message in link.messages():
                self.view.apply(message.topic, message.payload)
                message.ack()
                self._news.set()

    async def until(self, what: Callable[[], object]) -> None:
        """Wait until something is to be seen on the broker."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not what():
                    self._require_all_to_run()
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.5):
                            await self._news.wait()
        except (TimeoutError, AssertionError) as error:
            logs = "\n".join(f"== {name}\n{self.log(name)[-3000:]}" for name in ("coordinator", *DEVICES))
            raise AssertionError(f"{error or 'nothing happened'}; {self.view.round}\n{logs}") from None

    @property
    def version(self) -> int:
        """The newest that was announced."""
        return 0 if self.view.round is None else self.view.round.version

    def log(self, name: str) -> str:
        """Of a process, over all releases."""
        if not self.layout.log(name).exists():
            return ""
        return self.layout.log(name).read_text(errors="replace")

    def history(self, tree: Tree) -> dict[str, Any]:
        """What the coordinator knows."""
        config = str(self.layout.config("coordinator"))
        found: dict[str, Any] = json.loads(
            tree.run("coordinator", "history", "--format", "json", "--config", config)
        )
        return found

    def status(self, device: str) -> dict[str, Any]:
        """The last words of an agent."""
        found: dict[str, Any] = json.loads((self.layout.state(device) / "cache" / "status.json").read_text())
        return found
