import sys

import numpy as np
import pytest

from models import registry
from models import tensors as params
from models.contract import blob_of
from models.spec import MethodSpec
from models.training.evaluation import judge
from protocol.errors import Misconfigured, Refused
from protocol.frames.tensors import Codec
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.links import Uplink
from protocol.tasks.options import KnowledgeGraphTask
from protocol.tasks.task import Modality, Task


def test_the_methods_are_the_folders_and_each_has_its_five_files():
    found = registry.methods()
    assert "qqr" in found
    for name, spec in found.items():
        assert isinstance(spec, MethodSpec)
        assert spec.name == name
        assert spec.paper


def test_an_unknown_method_is_answered_with_the_known_ones():
    with pytest.raises(Misconfigured, match=r"'qrq'.*known:.*qqr.*did you mean 'qqr'"):
        registry.method("qrq")
    with pytest.raises(Misconfigured, match=r"'zzzzzz' is no method"):
        registry.method("zzzzzz")


def test_a_new_method_is_a_new_folder_and_one_that_lies_about_its_name_is_a_fault(tmp_path, monkeypatch):
    folder = tmp_path / "fifth"
    folder.mkdir()
    monkeypatch.setattr(registry._folder, "__path__", [*registry._folder.__path__, str(tmp_path)])
    (tmp_path / "unrelated").mkdir()
    (tmp_path / "unrelated" / "__init__.py").write_text("")
    (folder / "__init__.py").write_text(
        "from dataclasses import replace\nfrom models.methods.qqr import METHOD as M\n"
        "METHOD = replace(M, name='fifth')\n"
    )
    registry.methods.cache_clear()
    try:
        assert set(registry.methods()) >= {"fifth", "qqr"}
        assert "unrelated" not in registry.methods()
        for module in [name for name in sys.modules if name.startswith("models.methods.fifth")]:
            del sys.modules[module]
        (folder / "__init__.py").write_text(
            "from models.methods.qqr import METHOD as METHOD\n# longer than before\n"
        )
        registry.methods.cache_clear()
        with pytest.raises(TypeError, match="fifth"):
            registry.methods()
    finally:
        registry.methods.cache_clear()
        sys.modules.pop("models.methods.fifth", None)
        sys.modules.pop("models.methods.unrelated", None)


def test_a_method_and_a_task_are_of_one_kind_of_material_or_are_told_apart():
    windows = Task(name="w", labels=("a", "b"), modalities=(Modality(name="acc", channels=1, rate_hz=9),))
    graph = Task(name="g", graph=KnowledgeGraphTask())
    for name, spec in registry.methods().items():
        own, other = (windows, graph) if spec.material == "windows" else (graph, windows)
        assert isinstance(spec.configure(own), spec.config)
        with pytest.raises(Misconfigured, match=f"task '{other.name}': method '{name}' wants "):
            spec.configure(other)


def test_an_option_that_is_wrong_is_told_in_the_method_s_own_words():
    odd = Task(name="g", method="mmfed3_hide", graph=KnowledgeGraphTask(), config={"dim": 33})
    with pytest.raises(Misconfigured, match=r"method 'mmfed3_hide': config: dim 33 is odd; [^()]*$"):
        registry.method("mmfed3_hide").configure(odd)


def test_a_file_without_links_has_those_of_its_method_and_tables_of_a_file_stay():
    modalities = (Modality(name="acc", channels=1, rate_hz=9),)
    for name, spec in registry.methods().items():
        of = {"name": "w", "method": name, "labels": ("a", "b"), "modalities": modalities}
        made = spec.completed(Task(**of))
        assert (made.uplink, made.downlink) == (spec.uplink, spec.downlink)
        announced = TaskAnnouncement.of(made).read()
        assert announced.uplink == spec.uplink, "devices that know other defaults send the same"
        given = spec.completed(Task(**of, uplink=Uplink(error_carry=False)))
        assert (given.uplink, given.downlink) == (Uplink(error_carry=False), spec.downlink)
    assert registry.method("qqr").uplink != Uplink()


def test_a_spec_s_parts_and_codecs_are_ones_that_its_states_can_have():
    for spec in registry.methods().values():
        assert all(
            part.isidentifier() for part in (*spec.owned, *spec.bounded, *spec.optimised, *spec.rounded)
        )
        assert not set(spec.owned) & set(spec.optimised)
        assert set(spec.fine) <= set(spec.rounded)
        assert set(spec.codecs.values()) <= {Codec.FLOAT32, Codec.FLOAT16, Codec.UINT8}


def test_blobs_and_flat_tensors_are_the_same_thing():
    blobs = {
        "encoder/acc": {"encoder/acc/fc.weight": np.ones((2, 2), np.float32)},
        "head": {"head/fc1.bias": np.zeros(3, np.float32)},
    }
    flat = params.flatten(blobs)
    assert list(flat) == ["encoder/acc/fc.weight", "head/fc1.bias"]
    assert params.unflatten(flat) == blobs
    assert all(blob_of(name) == blob for blob, tensors in blobs.items() for name in tensors)


def test_a_delta_put_on_its_base_is_the_new_value_and_a_variance_never_turns_negative():
    base = {"w": np.float32([1, 2]), "bn.running_var": np.float32([0.1, 1]), "other": np.float32([5])}
    new = {"w": np.float32([1.5, 1]), "bn.running_var": np.float32([0.2, 2])}
    delta = params.difference(new, base)
    moved = params.apply(base, delta)
    for name, value in new.items():
        np.testing.assert_allclose(moved[name], value)
    assert moved["other"] is base["other"]
    below = params.apply(base, {"w": np.float32([-9, -9]), "bn.running_var": np.float32([-0.2, 0])})
    assert below["w"].tolist() == [-8, -7]
    assert below["bn.running_var"].tolist() == [0, 1]


def test_names_are_compared_both_ways():
    params.check_names(["a", "b"], ["b", "a"], "model")
    with pytest.raises(Refused, match="'b' is missing"):
        params.check_names(["a"], ["a", "b"], "model")
    with pytest.raises(Refused, match="'c' is not in the model"):
        params.check_names(["a", "c"], ["a"], "model")


def test_judging_counts_labelled_windows_only():
    p_BK = np.float32([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0], [0, 0, 1]])
    found = judge(np.array([0, 1, 1, -1]), p_BK)
    assert found.confusion_KK == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert found.metrics["accuracy"] == pytest.approx(2 / 3)
    assert found.metrics["macro_f1"] == pytest.approx(
        (2 / 3 + 2 / 3) / 2
    )  # class 2 neither occurs nor is predicted
    assert found.metrics["loss"] == pytest.approx(-np.log([0.9, 0.8, 0.4]).mean(), rel=1e-5)
    assert found.metrics["windows"] == 3
