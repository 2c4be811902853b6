"""The fold of rows by existence: against a plain average, over joins, absences and growth."""

import itertools

import numpy as np
import pytest

from models.aggregation.exact_sums import FixedPointSum
from models.contract import Profile, Update
from models.knowledge_graph.data.initial_embeddings import initial_rows
from models.methods.mmfed3_hide import METHOD, config_of, fold
from models.methods.mmfed3_hide.messages import MOST_WEIGHT
from models.tensors import flatten
from protocol.errors import Misconfigured, Refused
from protocol.frames.tensors import Codec, decode, encode
from protocol.tasks.task import Task
from tests.support.methods.mmfed3_cases import DIM, SPEC, task_of
from tests.support.tasks import update_header

SERVER, TASK = SPEC.server(), task_of()
RNG = np.random.default_rng(4)
KEYS = np.unique(RNG.integers(0, 256, (30, 16)).astype(np.uint8), axis=0)
START = {
    f"projection/{name}": {f"projection/{name}/weight": RNG.normal(size=(DIM, f)).astype(np.float32)}
    for name, f in (("text", 5), ("numeric", 3))
}


def first(rows) -> np.ndarray:
    return initial_rows(TASK.seed, KEYS[list(rows)], DIM, config_of(TASK).span)


def bits(flags) -> np.ndarray:
    return np.packbits(flags, bitorder="little").astype(np.float32)


def update_of(device, new, base, sent, *, triples=40, counts=("text",), **tensors) -> Update:
    """Rows are numbers of ``KEYS``; ``sent`` are those that travel."""
    every = sorted({*new, *base})
    rows = {"keys/new": KEYS[sorted(new)].astype(np.float32)} if new else {}
    rows["keys/sent"] = bits([row in sent for row in every])
    rng = np.random.default_rng((hash_of(device), *sent))
    rows["rows/delta"] = rng.normal(size=(len(sent), DIM)).astype(np.float32)
    header = update_header(
        TASK,
        device,
        weight=triples,
        samples=triples,
        counts=dict.fromkeys(counts, (triples,)),
        missing=dict.fromkeys(counts, 0.0),
        quality=dict.fromkeys(counts, 1.0),
    )
    return Update(header, rows | tensors)


def hash_of(device: str) -> int:
    return int.from_bytes(device.encode(), "big")


def folded(state, *updates):
    made = SERVER.open(TASK, 1, state)
    for update in updates:
        SERVER.check(TASK, state, update)
        made.fold(update)
    return made.close()


def as_bytes(state):
    return {name: tensor.tobytes() for name, tensor in flatten(state).items()}


def value(state, device, row):
    """One entity's row, as a device has it."""
    keys = state[f"rows/{device}"][f"rows/{device}/keys"]
    (at,) = np.flatnonzero((keys == KEYS[row]).all(axis=1))
    return state[f"rows/{device}"][f"rows/{device}/value"][at]


def delta(update, row, new, base=()):
    """What an update says of one entity; zero where it did not travel."""
    every = sorted({*new, *base})
    flags = np.unpackbits(update.tensors["keys/sent"].astype(np.uint8), bitorder="little")[: len(every)]
    at = every.index(row)
    return update.tensors["rows/delta"][flags[:at].sum()] if flags[at] else np.zeros(DIM)


A, B, C = range(8), range(4, 14), range(10, 16)
FIRST = (
    update_of("a", A, (), A),
    update_of("b", B, (), range(4, 12), triples=10),
    update_of("c", C, (), C, triples=100),
)
STATE = folded(START, *FIRST)


def test_an_entity_is_the_mean_over_the_devices_that_have_it():
    for row in range(16):
        moves = [delta(u, row, own) for u, own in zip(FIRST, (A, B, C), strict=True) if row in own]
        expected = first([row])[0] + np.mean(moves, axis=0)
        for device, own in (("a", A), ("b", B), ("c", C)):
            if row in own:
                np.testing.assert_allclose(value(STATE, device, row), expected, atol=2e-3)


def test_all_copies_of_an_entity_are_equal_and_what_float16_gives_back():
    assert value(STATE, "a", 5).tobytes() == value(STATE, "b", 5).tobytes()
    for blob, tensors in STATE.items():
        if blob.startswith("rows/"):
            rows_nD = tensors[f"{blob}/value"]
            np.testing.assert_array_equal(rows_nD.astype(np.float16).astype(np.float32), rows_nD)


def test_rows_of_any_size_are_what_the_codec_gives_back():
    """Of rows beyond 2**15 it would scale the smallest ones away."""
    rows_nD = np.array([[1e9, 3 * 2.0**-24], [-40000, 1 / 3], [np.float32(1e-30), 7]], np.float32)
    made_nD = fold.rounded(rows_nD)
    for some_nD in (made_nD, made_nD[:1], made_nD[1:]):
        assert decode(encode(some_nD, Codec.FLOAT16)).tobytes() == some_nD.tobytes()
    np.testing.assert_array_equal(fold.rounded(made_nD), made_nD)


def test_sums_have_room_for_every_device_with_all_the_weight_it_may_have():
    """Else the fold would refuse some, and which ones would hang on the order they came in."""
    config = config_of(task_of(max_delta=64.0))
    with pytest.raises(Misconfigured, match="max_delta"):
        config_of(task_of(max_delta=65.0))
    assert FixedPointSum({}, config.max_delta).max_weight >= fold.MOST_DEVICES * MOST_WEIGHT


def test_projections_are_averaged_by_triples():
    name = "projection/text/weight"
    x, y = (np.full((DIM, 5), v, np.float32) for v in (1.0, -2.0))
    made = folded(
        START,
        update_of("a", A, (), A, triples=30, **{name: x}),
        update_of("b", B, (), B, triples=10, **{name: y}),
        update_of("c", C, (), C, triples=500),
    )
    base = START["projection/text"][name]
    np.testing.assert_allclose(made["projection/text"][name], base + (30 - 2 * 10) / 40, atol=1e-5)
    assert made["projection/numeric"] == START["projection/numeric"]


def test_folding_in_any_order_and_grouping_agrees_to_the_bit():
    later = (
        update_of("a", (20,), A, (2, 5, 20)),
        update_of("b", (21, 2), B, B),
        update_of("d", (5, 21, 25), (), (5, 21, 25)),
    )
    expected = as_bytes(folded(STATE, *later))
    for order in itertools.permutations(later):
        assert as_bytes(folded(STATE, *order)) == expected
    for cut in range(4):
        one, other = (SERVER.open(TASK, 1, STATE) for _ in range(2))
        for i, update in enumerate(later):
            (one if i < cut else other).fold(update)
        one.merge(other)
        assert as_bytes(one.close()) == expected


def test_who_took_no_part_gets_the_new_rows_too():
    update = update_of("a", (), A, (5,))
    made = folded(STATE, update)
    expected = value(STATE, "b", 5) + update.tensors["rows/delta"][0]
    np.testing.assert_allclose(value(made, "b", 5), expected, atol=2e-3)
    assert made["rows/c"]["rows/c/value"].tobytes() == STATE["rows/c"]["rows/c/value"].tobytes()


def test_a_round_of_nobody_changes_nothing():
    assert as_bytes(folded(STATE)) == as_bytes(STATE)
    assert as_bytes(folded(START)) == as_bytes(START)


def test_a_row_that_waits_counts_as_a_change_of_zero():
    made = folded(STATE, update_of("a", (), A, (5,)), update_of("b", (), B, (4,)))
    moved = update_of("a", (), A, (5,)).tensors["rows/delta"][0]
    np.testing.assert_allclose(value(made, "a", 5), value(STATE, "a", 5) + moved / 2, atol=2e-3)


def test_who_brings_an_entity_that_others_have_gets_the_fleets_row():
    """It did not have that row: its change is not one of it."""
    late = update_of("d", (5, 25), (), (5, 25))
    made = folded(STATE, late)
    assert value(made, "d", 5).tobytes() == value(STATE, "a", 5).tobytes()
    expected = first([25])[0] + delta(late, 25, (5, 25))
    np.testing.assert_allclose(value(made, "d", 25), expected, atol=2e-3)


def test_a_graph_that_grew_keeps_its_old_rows_beside_the_new():
    grown = update_of("a", (20, 21), A, (20,))
    made = folded(STATE, grown)
    assert len(made["rows/a"]["rows/a/keys"]) == 10
    np.testing.assert_array_equal(made["rows/a"]["rows/a/keys"], KEYS[[*A, 20, 21]])
    np.testing.assert_allclose(value(made, "a", 21), first([21])[0], atol=2e-3)
    assert value(made, "a", 3).tobytes() == value(STATE, "a", 3).tobytes()


def test_random_rounds_agree_with_a_plain_average():
    rng, state, truth = np.random.default_rng(0), START, {}
    own: dict[str, set[int]] = {}
    for _ in range(6):
        updates, sums = [], {}
        for device in rng.permutation(["a", "b", "c", "d"])[: rng.integers(1, 5)].tolist():
            base = own.get(device, set())
            new = set(rng.choice(30, rng.integers(1, 9), replace=False).tolist()) - base
            every = sorted(base | new)
            sent = sorted(rng.choice(every, rng.integers(1, len(every) + 1), replace=False).tolist())
            update = update_of(device, new, base, sent)
            updates.append(update)
            for row in every:
                if row in base or row not in truth:
                    sums.setdefault(row, []).append(delta(update, row, new, base))
            own[device] = base | new
        for row, moves in sums.items():
            truth[row] = truth.get(row, first([row])[0]) + np.mean(moves, axis=0)
        state = folded(state, *updates)
        for device, rows in own.items():
            for row in rows:
                np.testing.assert_allclose(value(state, device, row), truth[row], atol=2e-2)


def test_the_route_is_the_projections_of_its_modalities():
    assert SERVER.route(TASK, Profile(("numeric",), ())) == ("projection/numeric",)
    assert SERVER.route(TASK, Profile((), ())) == ()
    assert METHOD.owned == ("rows",)


def changed(**tensors):
    update = update_of("a", (20, 21), A, (2, 20))
    kept = {name: x for name, x in update.tensors.items() if tensors.get(name, x) is not None}
    return Update(update.header, kept | {name: x for name, x in tensors.items() if x is not None})


def with_header(**fields):
    update = update_of("a", (20, 21), A, (2, 20))
    return Update(update.header.model_copy(update=fields), update.tensors)


TWO = np.zeros((2, DIM), np.float32)
WRONG = {
    "keys that are no bytes": changed(**{"keys/new": KEYS[20:22] + np.float32(0.5)}),
    "keys that are too long": changed(**{"keys/new": np.zeros((2, 17), np.float32)}),
    "keys out of order": changed(**{"keys/new": KEYS[[21, 20]].astype(np.float32)}),
    "a key twice": changed(**{"keys/new": KEYS[[20, 20]].astype(np.float32)}),
    "a key that the base has": changed(**{"keys/new": KEYS[[3, 20]].astype(np.float32)}),
    "a bitmap of another size": changed(**{"keys/sent": np.zeros(9, np.float32)}),
    "a bit beyond": changed(**{"keys/sent": np.array([4, 128], np.float32)}),
    "no bit": changed(**{"keys/sent": np.zeros(2, np.float32)}),
    "no bitmap": changed(**{"keys/sent": None}),
    "no rows": changed(**{"rows/delta": None}),
    "too few rows": changed(**{"rows/delta": TWO[:1]}),
    "rows of another width": changed(**{"rows/delta": TWO[:, :3]}),
    "a row that is not finite": changed(**{"rows/delta": TWO + np.float32(np.nan)}),
    "a row that goes too far": changed(**{"rows/delta": TWO + np.float32(1e3)}),
    "relations": changed(**{"own/relations": TWO}),
    "a projection of another shape": changed(**{"projection/text/weight": TWO}),
    "an unknown projection": changed(**{"projection/picture/weight": TWO}),
    "a projection that is not counted": changed(
        **{"projection/numeric/weight": np.zeros((DIM, 3), np.float32)}
    ),
    "more weight than triples": with_header(weight=41),
    "less weight than triples": with_header(weight=39),
    "more triples than a device has": with_header(samples=10**9, weight=1 << 20),
    "a message": with_header(extra={"relations": 4}),
    "an unknown modality": with_header(counts={"picture": (1,)}),
    "too many entities": update_of("a", range(16, 30), A, (2,)),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused_with_a_reason(what):
    tight = Task.model_validate(TASK.model_dump() | {"graph": TASK.graph.model_dump() | {"max_entities": 20}})
    SERVER.check(tight, STATE, changed())
    with pytest.raises(Refused) as refused:
        SERVER.check(tight, STATE, WRONG[what])
    assert len(str(refused.value)) > 20


def test_at_most_so_many_devices_have_rows(monkeypatch):
    monkeypatch.setattr(fold, "MOST_DEVICES", 4)
    monkeypatch.setattr("models.methods.mmfed3_hide.server.MOST_DEVICES", 4)
    joining = [update_of(device, (20,), (), (20,)) for device in ("aa", "zz")]
    full = folded(STATE, *joining)  # neither is refused: both came before the round closed
    assert sorted(name for name in full if name.startswith("rows/")) == [
        "rows/a",
        "rows/aa",
        "rows/b",
        "rows/c",
    ]
    with pytest.raises(Refused, match="as many as it takes"):
        SERVER.check(TASK, full, joining[1])
    SERVER.check(TASK, full, update_of("a", (), A, (5,)))
