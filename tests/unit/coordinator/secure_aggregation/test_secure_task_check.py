"""What does not go with ``[secure_aggregation]`` is refused before a task runs, in words."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.cluster.app import ingest, lead
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.ingest.header_checks import check_header
from coordinator.secure_aggregation.identities import authority_for
from coordinator.secure_aggregation.task_check import require_secure
from coordinator.task import load_task, problems
from models import registry
from models.methods.disentafl.server import DisentAflServer
from protocol.errors import Misconfigured, Refused
from protocol.tasks.features import needed
from protocol.tasks.folding import Robust, SecureAggregation
from protocol.tasks.labelling import Labelled
from protocol.tasks.links import Uplink
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from tests.support.tasks import sensors, small_task, stream, task_toml, update_header

ENOUGH = Rounds(min_devices=5)


def a_task(secure: dict[str, Any] | None = None, **fields: Any) -> Task:
    given = {"method": "fedavg", "rounds": ENOUGH, **fields}
    table = SecureAggregation.model_validate(secure or {})
    return small_task(sensors(a=(1, 20.0)), "ab", secure_aggregation=table, **given)


def test_a_device_must_know_the_table() -> None:
    assert "secure_aggregation" in needed(a_task())
    assert "secure_aggregation" not in needed(a_task().model_copy(update={"secure_aggregation": None}))


@pytest.mark.parametrize("method", ["fedavg", "qqr", "disentafl"])
@pytest.mark.parametrize("secure", [{}, {"weights": "samples", "ring_bits": 48}, {"identities": "none"}])
def test_a_sound_task_has_no_problems(method: str, secure: dict[str, Any]) -> None:
    assert problems(a_task(secure, method=method)) == []
    assert problems(a_task(secure, method=method, robust=Robust(outlier_factor=0))) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"robust": Robust(fold="median")}, "robust.fold = 'median' compares updates"),
        ({"robust": Robust(fold="clip")}, "robust.fold = 'clip' compares updates"),
        ({"robust": Robust(prototypes="geometric_median")}, "robust.prototypes = 'geometric_median' comp"),
        ({"robust": Robust(outlier_factor=3.0)}, "robust.outlier_factor = 3 measures single updates"),
        ({"rounds": Rounds(min_devices=5, selection="bandit")}, "rounds.selection = 'bandit' needs each"),
        ({"rounds": Rounds(min_devices=4)}, "rounds.min_devices = 4 would open rounds whose sum is never"),
        ({"method": "mmfed3_hide"}, "method 'mmfed3_hide': its fold is not a sum of whole numbers"),
        (
            {"method": "tactfl", "labelled": Labelled(file="own.npz")},
            "labelled windows, and nobody sees one; write 'equal'",
        ),
        (
            {"method": "tactfl", "labelled": Labelled(file="own.npz"), "config": {"weighting": "windows"}},
            "config.weighting = 'windows' weighs each update by its windows, and nobody sees their number",
        ),
        (
            {"rounds": Rounds(min_devices=5, devices_per_round=8192)},
            "rounds.devices_per_round: a sum over 8192 devices does not fit ring_bits = 32: with bound",
        ),
    ],
)
def test_what_would_show_or_compare_single_updates_is_named(fields: dict[str, Any], words: str) -> None:
    without = a_task(**fields).model_copy(update={"secure_aggregation": None})
    [found] = [one for one in problems(a_task(**fields)) if one not in problems(without)]
    assert found.startswith("secure_aggregation: ")
    assert words in found


@pytest.mark.parametrize(("method", "most"), [("fedavg", 100), ("qqr", 100), ("disentafl", 16)])
def test_a_bound_beyond_what_updates_may_have_is_refused(method: str, most: int) -> None:
    """Devices would not cut such a value, and could not send it: after a spoilt sum for ever."""
    wide = {"ring_bits": 48, "fraction_bits": 8}
    [found] = problems(a_task({**wide, "bound": most + 1}, method=method))
    assert f"bound = {most + 1} is beyond config.max_delta = {most}, from which updates are refused" in found
    assert problems(a_task({**wide, "bound": most}, method=method)) == []


def test_a_guided_method_that_weighs_all_alike_has_no_problems() -> None:
    given = {"method": "tactfl", "labelled": Labelled(file="own.npz"), "config": {"weighting": "equal"}}
    assert problems(a_task(**given)) == []


def test_a_guided_method_that_does_not_say_when_its_rounds_can_be_secure_is_refused() -> None:
    given = a_task(method="tactfl", config={"weighting": "equal"})
    with pytest.raises(Misconfigured, match=r"method 'tactfl' evaluates each update on the coordinator's"):
        require_secure(given, replace(registry.method("tactfl"), not_secure=None))


def test_a_routed_method_must_say_what_determines_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DisentAflServer, "serving_message")
    [found] = problems(a_task(method="disentafl"))
    assert "does not say what determines a device's bundle (RoutedServer.serving_message)" in found


def test_wrong_options_are_named_once() -> None:
    [found] = problems(a_task(method="tactfl", labelled=Labelled(file="x"), config={"weighting": "heavy"}))
    assert "config.weighting" in found


def test_every_problem_is_named_at_once() -> None:
    wrong = a_task(robust=Robust(fold="median", outlier_factor=2), rounds=Rounds(selection="bandit"))
    assert len(problems(wrong)) == 4


@pytest.mark.parametrize(
    ("secure", "words"),
    [
        ({"ring_bits": 16}, "a sum over 5 devices does not fit ring_bits = 16"),
        ({"fraction_bits": 23, "bound": 4}, "bound = 4 with fraction_bits = 23 is 33554432 steps"),
        ({"fraction_bits": 0, "bound": 0.5}, "is 0 steps"),
        ({"weights": "samples", "max_weight": 4096}, "weights up to 4096 there is room for 1"),
        ({"min_devices": 2}, "greater than or equal to 3"),
        ({"max_lost": 0.5}, "less than or equal to 0.4"),
        ({"ring_bits": 20}, "16, 24, 32, 48 or 64"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_when_the_task_is_read(
    secure: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError) as found:
        a_task(secure)
    assert words in str(found.value)


@pytest.mark.parametrize(
    ("uplink", "words"),
    [
        ({"fraction_bits": 8}, 'fraction_bits is an option of codec = "steps"'),
        ({"codec": "steps", "bound": 1.0}, "bound is an option beside fraction_bits"),
        ({"codec": "steps", "fraction_bits": 23, "bound": 2.0}, "is 16777216 steps"),
    ],
)
def test_a_fixed_step_is_an_option_of_the_codec_steps(uplink: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as found:
        Uplink.model_validate(uplink)
    assert words in str(found.value)


def test_a_cluster_does_not_start_on_secure_rounds(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    rounds, streams = {"min_devices": 5}, {"a": stream(1, 20.0)}
    file.write_text(task_toml(method="fedavg", rounds=rounds, streams=streams) + "\n[secure_aggregation]\n")
    settings = CoordinatorSettings.model_validate({"fleet": "f", "state_dir": tmp_path / "s", "task": file})
    assert load_task(settings)[0].secure_aggregation == SecureAggregation()
    for start in (lead, ingest):
        with pytest.raises(Misconfigured, match="ingest processes do not know the stages"):
            asyncio.run(start(settings))


def test_identities_are_required_unless_the_task_says_otherwise(tmp_path: Path) -> None:
    settings = CoordinatorSettings.model_validate(
        {"fleet": "f", "state_dir": tmp_path / "s", "task": tmp_path / "task.toml"}
    )
    assert authority_for(settings, SecureAggregation(identities="none")) is None
    with pytest.raises(Misconfigured, match=r"lichen coordinator init\), or write .* identities = .none."):
        authority_for(settings, SecureAggregation())
    ca = tmp_path / "s" / "identity" / "ca.pem"
    ca.parent.mkdir(parents=True)
    ca.write_text("nothing")
    with pytest.raises(Misconfigured, match="authority cannot be read"):
        authority_for(settings, SecureAggregation())


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 5},
        {"metrics": {"loss": 0.5}},
        {"counts": {"a": (1, 2)}},
        {"quality": {"a": 0.5}},
        {"missing": {"a": 0.5}},
        {"weight": 7},
    ],
    ids=str,
)
def test_a_masked_update_whose_header_tells_of_data_is_refused(change: dict[str, Any]) -> None:
    task = a_task()
    silent = update_header(task, samples=0)
    check_header(task, "d", silent, masked=True)
    with pytest.raises(Refused, match=f"{next(iter(change))}: "):
        check_header(task, "d", silent.model_copy(update=change), masked=True)
