"""The configuration files: whether they are valid, and whether sources and task fit together."""

from dataclasses import dataclass
from pathlib import Path

from edge_agent.config.agent import AgentSettings, read, read_task
from edge_agent.doctor.findings import Finding, fail, ok, warn
from edge_agent.knowledge_graph.watcher import check_knowledge_graph
from edge_agent.sources.registry import open_sources
from edge_agent.sources.task_match import doubts
from edge_agent.tasks.config_warnings import require_output
from edge_agent.tasks.roles import unavailable_roles
from edge_agent.tasks.task_store import check_for
from protocol.errors import Misconfigured
from runtime import exit_codes
from runtime.clock import SystemClock
from runtime.mqtt.link import read_password
from runtime.mqtt.tls import tls_context
from runtime.process.time_limit import TookTooLong, run_with_timeout

_SOURCES_S = 30.0


@dataclass(frozen=True)
class Configured:
    """Attributes: ``settings`` if the file could be read; ``wrong``: errors; ``doubtful``: warnings."""

    settings: AgentSettings | None = None
    wrong: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    task: str | None = None


def probe(config: Path) -> Configured:
    """Read everything that the agent reads at its start."""
    try:
        settings = read(config)
    except Misconfigured as error:
        return Configured(wrong=(str(error),))
    wrong: list[str] = []
    for look in (
        lambda: require_output(settings, config),
        lambda: tls_context(settings.mqtt),
        lambda: read_password(settings.mqtt),
    ):
        try:
            look()
        except Misconfigured as error:
            wrong.append(str(error))
    try:
        found = run_with_timeout(_SOURCES_S, lambda: _sources(settings, config))
    except Misconfigured as error:
        return Configured(settings, (*wrong, str(error)))
    except TookTooLong:
        words = f"{config}: the sources and their files were not read in {_SOURCES_S:g} s"
        return Configured(settings, tuple(wrong), (words,))
    names, doubtful, task = found
    return Configured(settings, tuple(wrong), doubtful, names, task)


def _sources(settings: AgentSettings, config: Path) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    task = None if settings.task_file is None else read_task(settings.task_file, config)
    sources = open_sources(settings, config, task, SystemClock())
    if task is not None:
        check_for(task, sources, settings)
    check_knowledge_graph(task, settings)
    names = tuple(f"{source.name} ({', '.join(source.channels)})" for source in sources)
    return names, () if task is None else tuple(doubts(task, sources)), None if task is None else task.name


def judge(found: Configured, config: Path) -> list[Finding]:
    """One finding for each error and warning."""
    todo = "write it as the message says; lichen agent check --config FILE reads it again"
    findings = [fail("config.files", words, todo, exit_codes.CONFIG) for words in found.wrong]
    findings += [
        warn("config.fit", words, "compare task.toml, the sources and their recordings")
        for words in found.doubtful
    ]
    if found.settings is None:
        return findings
    if not findings:
        task = found.task or "waited for from the coordinator"
        findings.append(
            ok(
                "config.files",
                f"{config} is sound; task: {task}; sources: {'; '.join(found.sources) or 'none'}",
            )
        )
    return findings + [
        warn("config.roles", words, "see there") for words in unavailable_roles(found.settings)
    ]
