"""An MLflow store: a tracking server, or a database of this machine. Imports mlflow when it is opened.

What was written is read from the store itself: nothing beside it can be lost, and a second run adds nothing.
"""

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lichen.tracking.entries import MetricEntry, params_of
from protocol.errors import Misconfigured, Transient
from protocol.tasks.task import Task

_BATCH: Final = 500
_PARAMS: Final = 100
_RUN_TAG: Final = "lichen:run"
_LATER: Final = frozenset({"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED"})
_QUIET: Final = {
    # Their default is to send usage data to their maker.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # Seven repetitions, each after twice the time: the follower repeats by itself, and can be stopped.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class MlflowStore:
    """Writes one run of one fleet.

    Args:
        uri: ``http://HOST:PORT`` of a tracking server, or ``sqlite:///FILE``.
        experiment: its name.
        model: name of the registered model.
    """

    def __init__(self, uri: str, experiment: str, model: str) -> None:
        self.uri = uri
        self._experiment = experiment
        self._model = model
        self._client: Any = None
        self._run = ""
        self._artifacts = ""
        self._status = ""
        self.steps: dict[str, set[int]] = {}
        """Metric -> versions whose value is there."""
        self.registered: dict[str, str] = {}
        """Digest of a version's manifest -> number of the registered version."""
        self._aliases: dict[str, str] = {}

    def open(self, run: str, task: Task, fleet: str, began_ms: int) -> None:
        """Find the run, or begin it, and read what is there.

        Args:
            run: its id, as a tag.
            task: its parameters.
            fleet: a tag, too.
            began_ms: Unix milliseconds.

        Raises:
            ModuleNotFoundError: mlflow is not installed.
            Misconfigured: the address is no store's, or it refuses.
            Transient: it does not answer.
        """
        if self._run:
            return
        with _answers(self.uri):
            self._client = _client(self.uri)
            where = self._experiment_id()
            found = self._client.search_runs([where], f"tags.`{_RUN_TAG}` = '{run}'", max_results=1)
            tags = {
                _RUN_TAG: run,
                "lichen:fleet": fleet,
                "lichen:task": task.name,
                "lichen:method": task.method,
            }
            one = (
                found[0] if found else self._client.create_run(where, began_ms, tags, f"{fleet}: {task.name}")
            )
            self._log_params(one.info.run_id, params_of(task), one.data.params)
            self.steps = {
                name: {point.step for point in self._client.get_metric_history(one.info.run_id, name)}
                for name in one.data.metrics
            }
            self._read_registered()
            self._run, self._artifacts, self._status = one.info.run_id, one.info.artifact_uri, one.info.status

    def log(self, entries: Sequence[MetricEntry]) -> None:
        """Write values; one that is there already changes nothing. Raises as :meth:`open`."""
        from mlflow.entities import Metric  # noqa: PLC0415 - a second to import

        with _answers(self.uri):
            for start in range(0, len(entries), _BATCH):
                part = entries[start : start + _BATCH]
                made = [Metric(one.name, one.value, one.wall_ms, one.step) for one in part]
                self._client.log_batch(self._run, metrics=made)
                for one in part:
                    self.steps.setdefault(one.name, set()).add(one.step)

    def register(
        self,
        version: int,
        manifest: str,
        tags: Mapping[str, str],
        texts: Mapping[str, str],
        files: Sequence[Path],
    ) -> None:
        """Register a version with its files, unless it is there. Raises as :meth:`open`.

        Args:
            version: of the fleet.
            manifest: its digest, by which it is known.
            tags: its lineage among them.
            texts: file name -> content.
            files: its bundles.
        """
        if manifest in self.registered:
            return
        folder = f"versions/{version:06d}"
        with _answers(self.uri):
            with tempfile.TemporaryDirectory(prefix="lichen-mlflow-") as scratch:
                for name, text in texts.items():
                    file = Path(scratch) / name
                    file.write_text(text, encoding="utf-8")
                    self._client.log_artifact(self._run, str(file), folder)
            for file in files:
                self._client.log_artifact(self._run, str(file), folder)
            made = self._client.create_model_version(
                self._model, f"{self._artifacts}/{folder}", self._run, dict(tags), await_creation_for=0
            )
        self.registered[manifest] = str(made.version)

    def name(self, alias: str, manifest: str) -> bool:
        """Let an alias mean a registered version; False: it does already, or there is no such one."""
        number = self.registered.get(manifest)
        if number is None or self._aliases.get(alias) == number:
            return False
        with _answers(self.uri):
            self._client.set_registered_model_alias(self._model, alias, number)
        self._aliases[alias] = number
        return True

    def ends(self, *, done: bool, wall_ms: int) -> None:
        """Say whether the run goes on. Raises as :meth:`open`."""
        wanted = "FINISHED" if done else "RUNNING"
        if self._status == wanted:
            return
        with _answers(self.uri):
            if done:
                self._client.set_terminated(self._run, wanted, wall_ms)
            else:
                self._client.update_run(self._run, wanted)
        self._status = wanted

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(self._experiment, _beside(self.uri)))

    def _log_params(self, run: str, wanted: Mapping[str, str], there: Mapping[str, str]) -> None:
        """Write the parameters that are missing. They cannot change: a task that did has a tag."""
        from mlflow.entities import Param, RunTag  # noqa: PLC0415 - as above

        missing = [Param(name, text) for name, text in wanted.items() if name not in there]
        for start in range(0, len(missing), _PARAMS):
            self._client.log_batch(run, params=missing[start : start + _PARAMS])
        changed = [
            RunTag(f"lichen:now:{name}"[:250], text)
            for name, text in wanted.items()
            if name in there and there[name] != text
        ]
        for start in range(0, len(changed), _PARAMS):
            self._client.log_batch(run, tags=changed[start : start + _PARAMS])

    def _read_registered(self) -> None:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above

        try:
            model = self._client.get_registered_model(self._model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            model = self._client.create_registered_model(self._model)
        self._aliases = {alias: str(number) for alias, number in (model.aliases or {}).items()}
        token = None
        while True:
            page = self._client.search_model_versions(
                f"name='{self._model}'", max_results=200, page_token=token
            )
            for one in page:
                if manifest := one.tags.get("lichen:manifest"):
                    self.registered[manifest] = str(one.version)
            token = page.token
            if not token:
                return


def _client(uri: str) -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient  # noqa: PLC0415 - as above

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _beside(uri: str) -> str | None:
    """Where files go: beside a database of this machine, not in the working folder; else the server says."""
    if not uri.startswith("sqlite:///"):
        return None
    return (Path(uri.removeprefix("sqlite:///")).absolute().parent / "mlartifacts").as_uri()


@contextmanager
def _answers(where: str) -> Iterator[None]:
    """The store's errors as ours."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above
    from requests.exceptions import RequestException  # noqa: PLC0415 - comes with it
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - only of a database

    try:
        yield
    except MlflowException as error:
        words = f"--store {where}: {error.message}"[:1000]
        raise (Transient if error.error_code in _LATER else Misconfigured)(words) from None
    except (RequestException, SQLAlchemyError, OSError) as error:
        raise Transient(f"--store {where}: {error}"[:1000]) from None
