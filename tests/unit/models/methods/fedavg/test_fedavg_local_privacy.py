"""FedAvg under ``[local_privacy]``: what is sent, what is not, the charge, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.task import problems
from models.contract import Tensors, WindowSet
from models.methods.fedavg.client import make_client
from models.privacy.local import private_training
from models.privacy.local.training_plan import TRAINED, TrainingPlan
from models.registry import method, methods
from models.tensors import flatten
from models.training.supervised import Batch
from protocol.errors import Misconfigured
from protocol.tasks.folding import LocalPrivacy
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window
from tests.support.fedavg_cases import initial, task, train, windows, without
from tests.support.tasks import sensors, small_task


def private_task(noise: float = 1.0, clip: float = 0.5, **config: Any) -> Task:
    local = LocalPrivacy(clip=clip, noise_multiplier=noise)
    return task(**config).model_copy(update={"local_privacy": local})


def values(tensors: Tensors) -> np.ndarray:
    """Of trained tensors, in a row."""
    return np.concatenate([x.ravel() for name, x in tensors.items() if "running_" not in name])


def test_the_noise_has_the_announced_size_and_other_values_each_time() -> None:
    noise, clip, lr, count = 300.0, 0.5, 0.1, 24
    its = private_task(noise, clip, lr=lr, batch=12, epochs=1)
    made = [train(its, windows(count)) for _ in range(25)]
    assert made[0].private[TRAINED].tolist() == [0.5, 2.0]
    sent = np.stack([values(one.tensors) for one in made])
    want = lr * noise * clip * math.sqrt(2) / (0.5 * count)
    assert np.std(sent) == pytest.approx(want, rel=0.03)  # the gradients vanish in it
    assert abs(np.mean(sent)) < 4 * want / math.sqrt(sent.size)
    assert len({one.tobytes() for one in sent}) == len(sent)


def test_nothing_that_is_measured_on_windows_is_sent() -> None:
    its = private_task(batch=6, epochs=3)
    result = train(its, windows(24))
    assert set(result.metrics) == {
        "windows", "unlabelled", "set_aside", "incomplete", "lr", "steps", "rate"
    }  # fmt: skip
    statistics = {name: x for name, x in result.tensors.items() if "running_" in name}
    assert statistics
    assert all(not x.any() for x in statistics.values())
    assert set(result.tensors) == set(flatten(initial(its)))


def test_an_encoder_is_sent_and_moved_if_any_window_has_its_modality() -> None:
    """Whether a step took that window does not show."""
    its = private_task(batch=2, epochs=1)
    rare, held = without(windows(64), 1, slice(1, 64)), windows(64)
    result = train(its, rare)
    assert result.private[TRAINED].tolist() == pytest.approx([0.032, 32.0])
    moved = {name.rpartition("/")[0] for name, x in result.tensors.items() if x.any()}
    assert moved == {"head", "encoder/acc", "encoder/gyro"}
    none = train(its, without(held, 1, slice(0, 64)))
    assert not [name for name in none.tensors if name.startswith("encoder/gyro")]


def test_each_step_takes_every_window_with_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[np.ndarray] = []
    real = private_training.clipped_sum

    def recorded(loss: Any, trained: Any, batch: Batch, clip: float) -> Any:
        taken.append(batch.at_B.numpy())
        return real(loss, trained, batch, clip)

    monkeypatch.setattr(private_training, "clipped_sum", recorded)
    result = train(private_task(batch=10, epochs=20), windows(50))
    rate, steps = result.private[TRAINED].tolist()
    assert (rate, steps) == pytest.approx((0.2, 100))
    sizes = np.array([len(one) for one in taken])
    assert sizes.mean() == pytest.approx(10, abs=4 * math.sqrt(8 / 100))
    assert 3 < sizes.var() < 16, "of a binomial distribution, 8; of batches of one size, 0"
    each = np.bincount(np.concatenate(taken), minlength=50)
    assert each.min() > 3
    assert each.max() < 40
    assert all(len(set(one.tolist())) == len(one) for one in taken)


def separable(count: int) -> tuple[Task, WindowSet]:
    """Three classes by the mean of a vector."""
    vector = Modality(name="v", kind="vector", channels=4, rate_hz=1.0)
    its = Task(
        name="t",
        method="fedavg",
        labels=("a", "b", "c"),
        modalities=(vector,),
        window=Window(length_s=1),
        network=Network(encoders={"v": Encoder(kind="mlp", width=8, depth=1)}, feature_dim=8, hidden_dim=8),
        config={"batch": 64, "epochs": 1, "lr": 0.5},
        local_privacy=LocalPrivacy(clip=1.0, noise_multiplier=1.0),
    )
    y_B = np.arange(count) % 3
    x_B41 = np.random.default_rng(0).normal(size=(count, 4, 1)).astype(np.float32)
    x_B41[np.arange(count), y_B, 0] += 3
    return its, WindowSet({"v": x_B41}, np.ones((count, 1), bool), np.ones((count, 1), np.float32), y_B)


def test_it_learns_from_many_windows_and_the_version_is_evaluated_as_it_was_trained() -> None:
    torch.manual_seed(0)
    its, held = separable(1200)
    client, state = make_client(), initial(its)
    before = client.evaluate(its, held, state).metrics["accuracy"]
    for round_ in range(1, 5):
        delta = train(its, held, state, round_=round_).tensors
        state = {blob: {n: x + delta[n] for n, x in tensors.items()} for blob, tensors in state.items()}
    assert before < 0.6
    assert client.evaluate(its, held, state).metrics["accuracy"] > 0.85


@pytest.mark.parametrize(
    ("batch", "epochs", "count", "plan"),
    [
        (128, 1, 100, TrainingPlan(1.0, 1)),
        (128, 2, 1000, TrainingPlan(0.13, 16)),
        (32, 1, 4096, TrainingPlan(0.0079, 128)),
        (10, 1, 1000, TrainingPlan(0.01, 100)),
        (2, 3, 3, TrainingPlan(0.67, 6)),
    ],
)
def test_the_plan_of_a_round_has_a_rate_of_two_digits_and_survives_float32(
    batch: int, epochs: int, count: int, plan: TrainingPlan
) -> None:
    made = TrainingPlan.of(batch, epochs, count)
    assert made == plan
    assert made.rate * count >= min(batch, count)
    assert TrainingPlan.within(made.charge()) == made


@pytest.mark.parametrize("wrong", [[0.0, 1.0], [1.5, 1.0], [0.5, 0.0], [math.nan, 3.0], [0.5], [0.5, 1e30]])
def test_a_charge_that_is_none_is_no_charge(wrong: list[float]) -> None:
    assert TrainingPlan.within({TRAINED: np.array(wrong, np.float32)}) is None


REFUSED = {
    "private_norms": ({"private_norms": "strict"}, "config.private_norms: norms are not measured"),
    "balanced_batches": ({"balanced_batches": True}, "config.balanced_batches: each window is taken with"),
    "class_weights": ({"class_weights": "balanced"}, "config.class_weights: one window would change"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_break_the_account_are_refused_in_words(case: str) -> None:
    config, words = REFUSED[case]
    its = private_task(**config)
    with pytest.raises(Misconfigured, match=words):
        method("fedavg").configure(its)
    assert any(words in one for one in problems(its))


def test_networks_without_gradients_of_single_windows_are_refused() -> None:
    its = small_task(sensors(a=(1, 4.0)), "ab", method="fedavg")
    linear = Network(kind="linear", feature_dim=its.samples("a"))
    local = LocalPrivacy(clip=1.0, noise_multiplier=1.0)
    with pytest.raises(Misconfigured, match=r"\[local_privacy\]: a 'linear' network is trained with NumPy"):
        method("fedavg").configure(its.model_copy(update={"network": linear, "local_privacy": local}))
    own = Network(encoders={"a": Encoder(kind="own:mixer")})
    with pytest.raises(Misconfigured, match="'own:mixer' is a part of a package"):
        method("fedavg").configure(its.model_copy(update={"network": own, "local_privacy": local}))


@pytest.mark.parametrize("name", sorted(set(methods()) - {"fedavg"}))
def test_other_methods_are_refused_in_words(name: str) -> None:
    spec = method(name)
    if spec.material == "graph":
        pytest.skip("its tasks have no windows")
    its = task().model_copy(
        update={"method": name, "config": {}, "local_privacy": LocalPrivacy(clip=1.0, noise_multiplier=1.0)}
    )
    with pytest.raises(Misconfigured, match=r"\[local_privacy\]: its devices do not train with DP-SGD"):
        spec.configure(its)


def test_devices_train_one_by_one() -> None:
    assert "[local_privacy]" in make_client().group_trouble(private_task())
