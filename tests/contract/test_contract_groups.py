"""What a method whose devices train at once promises, over every method that the registry finds."""

from typing import Any, cast

import numpy as np
import pytest

from models.registry import methods
from models.spec import MethodSpec
from models.training.group_client import GroupClient, GroupMember
from tests.support.methods.contract_cases import context, task_of, windows_of

pytestmark = pytest.mark.parametrize("spec", methods().values(), ids=list(methods()))


def test_contract_a_method_says_whether_its_devices_train_at_once(spec: MethodSpec[Any]) -> None:
    assert spec.in_groups == all(hasattr(spec.client(), name) for name in ("train_group", "group_trouble"))


def test_contract_devices_at_once_send_what_each_sends_alone(spec: MethodSpec[Any]) -> None:
    if not spec.in_groups:
        pytest.skip(f"{spec.name} says that its devices train one by one")
    task, client = task_of(spec), cast("GroupClient", spec.client())
    assert not client.group_trouble(task)
    state = client.initial(task, 1)
    members = [GroupMember(context(task, f"d{n}"), windows_of(task, n), {}) for n in range(3)]
    for member, made in zip(members, client.train_group(members, state), strict=True):
        alone = client.train(member.context, member.windows, state, {})
        assert made is not None
        assert (made.codecs, made.weight, made.extra) == (alone.codecs, alone.weight, alone.extra)
        assert made.metrics == pytest.approx(alone.metrics, rel=1e-4)
        assert made.tensors.keys() == alone.tensors.keys()
        assert made.private.keys() == alone.private.keys()
        for name, tensor in alone.tensors.items():
            if name not in made.codecs:  # those are rounded to few values
                np.testing.assert_allclose(made.tensors[name], tensor, rtol=1e-4, atol=2e-6, err_msg=name)
