"""From a configuration file to an exit status."""

from pathlib import Path

from edge_agent.agent import Agent, open_sources
from edge_agent.config import AgentSettings, read, read_task
from runtime import logs, supervise
from runtime.clock import SystemClock
from runtime.files import disk_errors
from runtime.settings import LogSettings


def load(config: Path) -> tuple[AgentSettings, Agent]:
    """Read and check everything, and make the agent.

    Raises:
        Misconfigured: names file and key.
    """
    settings = read(config)
    logs.configure(settings.log)
    clock = SystemClock()
    task = None if settings.task_file is None else read_task(settings.task_file)
    sources = open_sources(settings, config.absolute().parent, task, clock)
    for folder in (settings.state_dir, settings.cache_dir):
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    return settings, Agent(settings, sources, clock)


async def main(config: Path) -> int:
    """Run until a signal. Returns the exit status."""
    _, agent = load(config)
    try:
        await agent.start()
        return await supervise.supervise(agent.services(), on_stop=agent.stop, progress=agent.progress)
    finally:
        agent.close()


def run(config: Path) -> int:
    """``lichen agent run``."""
    logs.configure(LogSettings())  # until the file was read; what is wrong with it goes to stderr too
    return supervise.run(lambda: main(config))
