"""The supernet by its parts, and the sub-network of a route."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.contract import Blobs, Profile
from models.methods.disentafl import SHARED
from models.methods.disentafl.client import make_client
from models.methods.disentafl.network.attention import AttentionEncoder
from models.methods.disentafl.network.inference import RouteModel, predictions
from models.methods.disentafl.network.supernet import Subnet, part, subnet
from models.methods.disentafl.routing.blob_names import config_of, profile_of, route
from models.tensors import flatten
from protocol.errors import Misconfigured, Refused
from protocol.output_names import outputs
from protocol.tasks.task import LABEL, Modality, Target
from tests.support.kinds import MODALITIES, task_of_kinds
from tests.support.methods.disentafl_cases import ACC, ALL, task_of, windows_of

SMALL = {"width": 16, "hidden": 8, "heads": 2, "bottleneck": 4}


def small(**config):
    return task_of(**SMALL, **config)


def on(task, state, profile, domain=0) -> Blobs:
    return {name: state[name] for name in route(task, profile, (domain,))}


def stirred(state: Blobs, seed: int = 0) -> Blobs:
    """As after training: no layer is zero any more."""
    rng = np.random.default_rng(seed)
    return {
        blob: {n: t + rng.normal(0, 0.3, t.shape).astype(np.float32) for n, t in tensors.items()}
        for blob, tensors in state.items()
    }


@pytest.fixture(scope="module")
def task():
    return small()


@pytest.fixture(scope="module")
def state(task) -> Blobs:
    return stirred(make_client().initial(task, 1))


def inputs(task, profile, count=5, seed=2):
    windows = windows_of(task, seed, count, absent=())
    return [torch.from_numpy(windows.x[name]) for name in profile.modalities]


def everywhere(count, profile):
    return torch.ones(count, len(profile.modalities), dtype=torch.bool)


FAMILIES = [["mode", "mote", "mome"], ["mode", "mome"], ["mode", "mote"], ["mote", "mome"], []]


@pytest.mark.parametrize("families", FAMILIES, ids="+".join)
def test_a_sub_network_is_made_of_the_tensors_of_its_route_and_of_no_other(families):
    task = small(families=families)
    state = make_client().initial(task, 0)
    for profile in (ACC, ALL, Profile(("gyro",), ("speed", "picture"))):
        held = on(task, state, profile, 2)
        made = flatten({name: held[name] for name in held if not name.startswith("gate/")})
        net = subnet(task, held)
        assert net.tensors().keys() == made.keys()
        assert all(net.tensors()[name].tobytes() == tensor.tobytes() for name, tensor in made.items())
        assert set(net.wire().values()) == {path for path, _ in net.named_parameters()}
        assert profile_of(task, held) == profile


@pytest.mark.parametrize(
    ("families", "shared"),
    [
        (["mode", "mote", "mome"], {}),
        (["mode", "mome"], {"mote": (None, SHARED)}),
        (["mode", "mote"], {"mome": (SHARED, None)}),
    ],
    ids=["all", "without mote", "without mome"],
)
def test_experts_in_one_product_compute_the_papers_sum_over_experts(families, shared):
    task = small(families=families)
    state, profile = stirred(make_client().initial(task, 1)), Profile(("acc", "gyro"), ("label", "speed"))
    net = subnet(task, on(task, state, profile))
    flat = {name: torch.from_numpy(tensor) for name, tensor in flatten(state).items()}

    def expert(kind, m, o, h):
        m, o = (b or a for a, b in zip((m, o), shared.get(kind, (None, None)), strict=True))
        return functional.linear(
            h, flat[f"expert/{m}.{o}/{kind}.weight"], flat[f"expert/{m}.{o}/{kind}.bias"]
        )

    with torch.no_grad():
        x = inputs(task, profile)
        seen = net(everywhere(5, profile), *x)
        h = [net._encoded(m, torch.ones(5, dtype=torch.bool), x_BCT) for m, x_BCT in enumerate(x)]
        rows = {name: h_BD[:, 8:] for name, h_BD in zip(profile.modalities, h, strict=True)}
        rows[SHARED] = (h[0][:, :8] + h[1][:, :8]) / 2
        t = {
            o: sum(
                expert("mome", m, o, functional.gelu(expert("mote", m, o, h_BH))) for m, h_BH in rows.items()
            )
            for o in (*profile.targets, SHARED)
        }
        for i, name in enumerate(profile.targets):
            want = net.lasts[i](net.decoders[i](torch.cat([t[SHARED], t[name]], dim=1)))
            torch.testing.assert_close(seen.made[name], want, rtol=1e-4, atol=1e-5)
        want = torch.stack(
            [torch.stack([expert("mote", m, o, h_BH) for o in t], dim=1) for m, h_BH in rows.items()], dim=1
        )
    # t has the targets in order and the shared one last, as Z
    torch.testing.assert_close(seen.z_BMOF, want, rtol=1e-4, atol=1e-5)


def test_a_missing_modality_has_no_part_in_anything_whatever_it_holds(task, state):
    gyro = Profile(("gyro",), ALL.targets)
    whole, alone = subnet(task, on(task, state, ALL)), subnet(task, on(task, state, gyro))
    x_acc, x_gyro = inputs(task, ALL)
    present_BM = torch.tensor([[False, True]]).expand(5, 2)
    with torch.no_grad():
        without = whole(present_BM, torch.full_like(x_acc, torch.nan), x_gyro)
        expected = alone(everywhere(5, gyro), x_gyro)
    for name in ALL.targets:
        torch.testing.assert_close(without.made[name], expected.made[name], rtol=1e-4, atol=1e-5)
    assert without.there_BM.tolist() == [[False, True, True]] * 5


def test_each_window_is_on_its_own(task, state):
    net = subnet(task, on(task, state, ALL))
    x = inputs(task, ALL)
    present_BM = torch.tensor([[True, True], [True, False], [False, True], [False, False], [True, True]])
    with torch.no_grad():
        together = net(present_BM, *x)
        for b in range(5):
            alone = net(present_BM[b : b + 1], *(x_BCT[b : b + 1] for x_BCT in x))
            torch.testing.assert_close(
                together.made["label"][b : b + 1], alone.made["label"], rtol=1e-4, atol=1e-5
            )


def test_with_nothing_present_all_classes_are_equal_and_numbers_are_their_offset(task, state):
    model = RouteModel(task, subnet(task, on(task, state, ALL)))
    windows = windows_of(task, absent=task.modality_names)
    made = predictions(model, task, windows)
    assert np.ptp(made["probabilities"]) == 0
    assert not made["speed/value"].any()
    assert not made["picture/window"].any()


def test_a_fresh_domain_changes_nothing_and_a_trained_one_only_its_own_devices(task):
    fresh, x = make_client().initial(task, 3), inputs(task, ACC)
    trained = fresh | {
        "domain/acc.1": {name: tensor + np.float32(0.5) for name, tensor in fresh["domain/acc.1"].items()}
    }

    def made(state, domain):
        net = Subnet(task, ACC, domain)
        net.load(flatten(state))
        with torch.no_grad():
            return net(everywhere(5, ACC), *x).made["label"]

    assert torch.equal(made(fresh, 0), made(fresh, 1))
    assert torch.equal(made(fresh, 0), made(fresh, None))
    assert torch.equal(made(trained, 0), made(fresh, 0))
    assert not torch.allclose(made(trained, 1), made(fresh, 1))


def test_every_parameter_of_a_route_is_trained(task, state):
    net = subnet(task, on(task, state, ALL))
    seen = net(everywhere(5, ALL), *inputs(task, ALL))
    sum(made.square().sum() for made in seen.made.values()).backward()
    # a key's bias adds the same to every score of a query, which a softmax does not see
    still = [
        name
        for name, p in net.named_parameters()
        if (p.grad is None or not p.grad.any()) and not name.endswith("key.bias")
    ]
    assert still == []


def test_the_numbers_of_a_modality_reach_the_network_normalised(task, state):
    scaled = task.model_copy(
        update={
            "modalities": tuple(m.model_copy(update={"offset": 0.0, "scale": 1.0}) for m in task.modalities)
        }
    )
    (x_BCT,) = inputs(task, ACC)
    acc = task.modality("acc")
    with torch.no_grad():
        raw = subnet(task, on(task, state, ACC))(everywhere(5, ACC), x_BCT * acc.scale + acc.offset)
        own = subnet(scaled, on(task, state, ACC))(everywhere(5, ACC), x_BCT)
    torch.testing.assert_close(raw.made["label"], own.made["label"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("samples", "tokens", "patch"), [(8, 16, 1), (50, 16, 4), (16, 16, 1), (17, 4, 5)])
def test_any_window_becomes_at_most_so_many_tokens_and_all_of_it_is_read(samples, tokens, patch):
    stream = Modality(name="s", channels=2, rate_hz=10)
    encoder = AttentionEncoder(stream, samples, config_of(small(tokens=tokens)))
    assert encoder.cut.patch == patch
    assert encoder.cut.tokens <= tokens
    x_BCT = torch.randn(3, 2, samples, generator=torch.Generator().manual_seed(0), requires_grad=True)
    # the mean of normalised features is that of LayerNorm's bias: a weight of their own makes them matter
    (encoder(x_BCT) * torch.arange(16)).sum().backward()
    assert x_BCT.grad is not None
    assert bool((x_BCT.grad != 0).all())


@pytest.mark.parametrize("size", [(8, 10), (28, 28), (3, 50), (1, 1), (96, 96)])
def test_an_image_is_cut_into_at_most_so_many_square_tiles_and_all_of_it_is_read(size):
    height, width = size
    camera = Modality(name="c", kind="image", channels=3, height=height, width=width, rate_hz=1)
    encoder = AttentionEncoder(camera, height * width, config_of(small(tokens=16)))
    assert encoder.cut.tokens <= 16
    x_BCT = torch.randn(2, 3, height * width, generator=torch.Generator().manual_seed(0))
    tiles = encoder.cut.patches(x_BCT)
    assert tiles.abs().sum() == pytest.approx(float(x_BCT.abs().sum()), rel=1e-5)
    side = math.isqrt(encoder.cut.patch)
    first = x_BCT.reshape(2, 3, height, width)[:, :, :side, :side]
    corner = tiles[:, 0].reshape(2, 3, side, side)[:, :, : first.shape[2], : first.shape[3]]
    assert torch.equal(corner, first)


@pytest.mark.parametrize(
    ("kind", "taken"), [("image", True), ("vector", True), ("sound", False), ("text", False)]
)
def test_a_target_of_a_kind_that_no_linear_layer_makes_is_refused_by_name(kind, taken):
    made = Target(name="made", kind="generation", modality=MODALITIES[kind].name)
    task = task_of_kinds(("stream", kind), "disentafl").model_copy(update={"targets": (made,)})
    if taken:
        assert config_of(task)
        return
    with pytest.raises(
        Misconfigured, match=f"target 'made' is a modality of kind '{kind}'.*stream, image, vector"
    ):
        config_of(task)


def test_patches_are_what_a_convolution_with_its_stride_for_kernel_gives():
    encoder = AttentionEncoder(Modality(name="s", channels=3, rate_hz=10), 10, config_of(small(tokens=4)))
    x_BCT = torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(0))
    seen = []
    encoder.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    encoder(x_BCT)
    want = encoder.embed(functional.pad(x_BCT, (0, 2))).transpose(1, 2) + encoder.positions
    torch.testing.assert_close(seen[0], want)


def test_predictions_are_in_raw_units_and_in_the_order_of_the_targets(task, state):
    changed = task.model_copy(
        update={
            "targets": tuple(
                t.model_copy(update={"offset": 60.0, "scale": 10.0} if t.kind == "regression" else {})
                for t in task.targets
            ),
            "modalities": tuple(
                m.model_copy(update={"offset": 3.0, "scale": 5.0} if m.name == "cam" else {})
                for m in task.modalities
            ),
        }
    )
    windows = windows_of(task, count=300)
    plain, own = (
        predictions(make_client().inference_model(t, on(t, state, ALL)), t, windows) for t in (task, changed)
    )
    assert tuple(plain) == outputs(task.objectives)
    assert plain["probabilities"].shape == plain["logits"].shape == (300, 3)
    assert plain["pose/probabilities"].shape == (300, 2)
    assert plain["speed/value"].shape == (300,)
    assert plain["picture/window"].shape == (300, 1, 4)
    np.testing.assert_allclose(plain["probabilities"].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(own["speed/value"], 60 + 10 * plain["speed/value"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(own["picture/window"], 3 + 5 * plain["picture/window"], rtol=1e-4, atol=1e-4)


def test_no_window_gives_no_prediction(task, state):
    made = predictions(
        make_client().inference_model(task, on(task, state, ACC)), task, windows_of(task, count=0)
    )
    assert made["probabilities"].shape == (0, 3)


def test_an_inference_modules_parameters_have_their_wire_names(task, state):
    held = on(task, state, ACC)
    model = make_client().inference_model(task, held)
    assert model.modalities == ("acc",)
    assert [target.name for target in model.targets] == [LABEL]
    own, flat = dict(model.named_parameters()), flatten(held)
    assert model.wire().keys() == {name for name in flat if not name.startswith("gate/")}
    for name, path in model.wire().items():
        assert own[path].detach().numpy().tobytes() == flat[name].tobytes()


def test_a_state_that_does_not_fit_is_refused_with_the_tensor_named(task, state):
    held = on(task, state, ACC)
    name = "expert/acc.label/mote.weight"
    for wrong in ({}, {name: np.zeros((2, 2), np.float32)}):
        tensors = {n: t for n, t in held["expert/acc.label"].items() if n != name} | wrong
        with pytest.raises(Refused, match=name):
            subnet(task, held | {"expert/acc.label": tensors})


def test_what_is_no_part_of_the_network_has_no_module(task):
    with pytest.raises(KeyError, match="gate/acc"):
        part(task, config_of(task), "gate/acc")
