from typing import Any

import numpy as np
import pytest

from lichen_lab.simulation.data.streams import Evolving, rng_of, without_modality
from lichen_lab.simulation.training import device as simulated_device
from lichen_lab.simulation.training.runner import History, alone, each_alone, simulate
from models.contract import WindowSet
from protocol.errors import Misconfigured
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window

MODALITIES = (
    Modality(name="a", channels=2, rate_hz=16.0),
    Modality(name="b", channels=3, rate_hz=16.0),
)


def task(**changes: object) -> Task:
    small = Encoder(kind="cnn1d", width=4, depth=2)
    return Task(
        name="toy",
        labels=("low", "middle", "high"),
        modalities=MODALITIES,
        window=Window(length_s=1.0, stride_s=0.5),
        network=Network(encoders={"a": small, "b": small}, feature_dim=8, hidden_dim=16),
        **{  # type: ignore[arg-type]
            "config": {"epochs": 2, "batch": 16, "lr": 0.1},
            "uplink": Uplink(codec="int8"),  # a few rounds of a tiny network leave no time for error carry
            **changes,
        },
    )


def windows(count: int, seed: int, classes: tuple[int, ...] = (0, 1, 2)) -> WindowSet:
    """Three classes that a small network can tell apart: the level of both sensors."""
    rng = rng_of(seed)
    y = rng.choice(classes, count).astype(np.int64)
    x = {
        m.name: (rng.standard_normal((count, m.channels, 16)) + 1.5 * (y[:, None, None] - 1)).astype(
            np.float32
        )
        for m in MODALITIES
    }
    return WindowSet(x, np.ones((count, 2), np.bool_), np.ones((count, 2), np.float32), y)


def fleet() -> dict[str, WindowSet]:
    return {f"d{i}": without_modality(windows(60, i), 0.5, rng_of(9, i)) for i in range(3)}


@pytest.fixture(scope="module")
def history() -> History:
    return simulate(task(), fleet(), windows(90, 50), 3, rounds=4)


def test_simulate_learns_and_accounts_for_every_round(history: History) -> None:
    assert history.curve()[-1] > 0.7
    assert [record.round for record in history.rounds] == [1, 2, 3, 4]
    for record in history.rounds:
        assert set(record.accepted) == {"d0", "d1", "d2"}
        assert not record.refused
        assert {"encoder/a", "encoder/b", "head", "prototypes/a", "prototypes/b", "frame"} == set(
            record.bytes_up
        )
    assert history.evaluation is not None
    assert history.evaluation.metrics["accuracy"] == history.curve()[-1]


def test_simulate_same_seed_same_result_to_the_bit(history: History) -> None:
    again = simulate(task(), fleet(), windows(90, 50), 3, rounds=4)
    assert again.rounds == history.rounds
    for blob, tensors in history.state.items():
        for name, values in tensors.items():
            assert (values == again.state[blob][name]).all(), name
    other = simulate(task(), fleet(), windows(90, 50), 4, rounds=1)
    assert other.rounds[0].metrics != history.rounds[0].metrics


def test_simulate_bytes_are_those_of_the_codec(history: History) -> None:
    raw = simulate(task(uplink=Uplink(codec="float32")), fleet(), None, 3, rounds=1).rounds[0].bytes_up
    int8 = history.rounds[0].bytes_up
    for part in ("encoder/a", "encoder/b", "head"):
        assert raw[part] == 4 * int8[part]
    # prototypes have bits of their own: 3 devices, 3 classes, 8 numbers, 4 bits
    assert raw["prototypes/a"] == int8["prototypes/a"] == 3 * 3 * 8 // 2
    assert history.bytes_up > 4 * sum(int8[part] for part in ("encoder/a", "encoder/b", "head"))


def test_simulate_codec_noise_is_real() -> None:
    exact = simulate(task(uplink=Uplink(codec="float32")), fleet(), None, 3, rounds=1)
    coarse = simulate(task(uplink=Uplink(codec="int2")), fleet(), None, 3, rounds=1)
    name = "head/fc1.weight"
    assert (exact.state["head"][name] != coarse.state["head"][name]).any()


def test_simulate_alone_is_the_same_client_without_the_others() -> None:
    skewed = {f"d{i}": windows(60, i, classes=(i, (i + 1) % 3)) for i in range(3)}
    test = windows(90, 50)
    together = simulate(task(), skewed, test, 3, rounds=6).curve()[-1]
    singles = alone(task(), skewed, test, 3, rounds=6)
    assert set(singles) == set(skewed)
    reached = [one.metrics["accuracy"] for one in singles.values()]
    # each has seen two of three classes
    assert max(reached) < 0.75
    assert together > sum(reached) / 3 + 0.1
    only = each_alone(task(), {"d1": skewed["d1"]}, None, 3, rounds=1)["d1"]
    assert list(only.rounds[0].accepted) == ["d1"]


def test_simulate_a_device_alone_sees_its_samples_in_the_fleets_order() -> None:
    # All start from the same model: what each learns in the first round depends on its order of samples.
    exact = task().model_copy(update={"downlink": Downlink(codec="float32")})
    lonely = each_alone(exact, fleet(), None, 3, rounds=1)
    for name, metrics in simulate(exact, fleet(), None, 3, rounds=1).rounds[0].accepted.items():
        assert lonely[name].rounds[0].accepted[name] == metrics


def test_simulate_takes_streams_and_reports_progress() -> None:
    seen: list[int] = []
    streams = {
        "d": Evolving(windows(80, 1), seed=1, size=40, step=10, missing_share=0.5, affected_rounds=1.0)
    }
    history = simulate(
        task(),
        streams,
        windows(30, 50),
        0,
        rounds=3,
        evaluate_every=2,
        progress=lambda r: seen.append(r.round),
    )
    assert seen == [1, 2, 3]
    assert [bool(record.metrics) for record in history.rounds] == [False, True, True]


def test_simulate_a_device_without_a_modality_sends_no_encoder_of_it() -> None:
    one = windows(60, 0)
    one.present_BM[:, 1] = False
    one.x["b"][:] = 0
    history = simulate(task(), {"d0": windows(60, 1), "d1": one}, None, 0, rounds=2)
    both, alone_b = history.rounds[-1].bytes_up["encoder/a"], history.rounds[-1].bytes_up["encoder/b"]
    single = simulate(task(), {"d0": windows(60, 1)}, None, 0, rounds=1).rounds[0].bytes_up
    assert both == 2 * single["encoder/a"]
    assert alone_b == single["encoder/b"]


def test_simulate_a_nan_or_idle_device_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = simulated_device.encode_update

    def poisoned(*given: Any, **more: Any) -> object:
        (device, _), result = given[2], given[4]
        if device == "d0":
            result.tensors["head/fc2.bias"] = np.full(5, 1.0, np.float32)
        if device == "d3":
            result.tensors["head/fc2.bias"][0] = np.nan
        return real(*given, **more)

    monkeypatch.setattr(simulated_device, "encode_update", poisoned)
    unlabelled = windows(20, 2)
    unlabelled.y_B[:] = -1
    some = {"d0": windows(40, 0), "d1": windows(40, 1), "d2": unlabelled, "d3": windows(40, 3)}
    history = simulate(task(), some, None, 0, rounds=1)
    record = history.rounds[0]
    assert "head/fc2.bias" in record.refused["d0"]
    assert "head/fc2.bias" in record.refused["d3"]
    assert "no labelled window" in record.refused["d2"]
    assert list(record.accepted) == ["d1"]


def test_simulate_refuses_nonsense() -> None:
    with pytest.raises(Misconfigured, match="at least one device"):
        simulate(task(), {}, None, 0)
    with pytest.raises(Misconfigured, match="impute"):
        simulate(task(config={"impute": "guess"}), fleet(), None, 0)


@pytest.mark.long
def test_rounds_end_when_versions_no_longer_move() -> None:
    learned = task(rounds=Rounds(count=12, patience=2), config={"epochs": 4, "batch": 4, "lr": 0.3})
    devices = {name: windows(60, i) for i, name in enumerate(("d0", "d1"))}
    ended = simulate(learned, devices, windows(90, 50), 3, evaluate_every=12, ends_early=True)
    assert ended.ended == "no step of the last 2 versions was 5% of the longest"
    assert 3 <= len(ended.rounds) < 12
    assert ended.evaluation is not None  # the last version is evaluated, whichever it is
    whole = simulate(learned, devices, None, 3)
    assert (len(whole.rounds), whole.ended) == (12, "")
