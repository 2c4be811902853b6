"""The spool against a dictionary, with restarts in between."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.frames.frame import digest as digest_of
from runtime.storage.spool import Spool

BUDGET = 2000
TASKS = st.sampled_from(["a", "b"])


class SpoolAgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp())
        self.spool = Spool(self.folder / "s", BUDGET)
        self.entries: dict[tuple[str, int], tuple[str, bytes]] = {}  # in order of writing
        self.carry: dict[str, dict[str, np.ndarray]] = {}
        self.dropped = 0
        self.count = 0
        self.digests = [digest_of(b"never put")]

    def _used(self) -> int:
        carries = sum(x.nbytes for c in self.carry.values() for x in c.values())
        return carries + sum(len(p) for _, p in self.entries.values())

    @rule(
        task=TASKS,
        round_=st.integers(0, 4),
        size=st.integers(0, 900),
        carry=st.none() | st.lists(st.integers(0, 30), max_size=3),
    )
    def put(self, task, round_, size, carry):
        self.count += 1
        payload = self.count.to_bytes(4) * max(1, size // 4)
        digest = digest_of(payload)
        self.digests.append(digest)
        arrays = None
        if carry is not None:
            arrays = {f"n{i}": np.full(n, self.count, np.float32) for i, n in enumerate(carry)}
            self.carry[task] = arrays
        self.spool.put(task=task, round_=round_, digest=digest, payload=payload, carry=arrays)
        self.entries.pop((task, round_), None)
        while self._used() + len(payload) > BUDGET:
            self.entries.pop(next(iter(self.entries)))
            self.dropped += 1
        self.entries[task, round_] = (digest, payload)

    @rule(back=st.integers(0, 5))
    def receipt(self, back):
        digest = self.digests[max(0, self.count - back)]
        held = [key for key, (d, _) in self.entries.items() if d == digest]
        assert self.spool.clear(digest) == bool(held)
        for key in held:
            del self.entries[key]

    @rule()
    def restart(self):
        self.spool.close()
        self.spool = Spool(self.folder / "s", BUDGET)
        self.dropped = 0

    @invariant()
    def agree(self):
        found = [((e.task, e.round), (e.digest, self.spool.payload(e.digest))) for e in self.spool.pending()]
        assert found == list(self.entries.items())
        assert self.spool.bytes_used == self._used() <= BUDGET
        assert self.spool.dropped == self.dropped
        for task in ("a", "b"):
            kept, wanted = self.spool.carry(task), self.carry.get(task, {})
            assert set(kept) == set(wanted)
            assert all(np.array_equal(kept[n], wanted[n]) for n in wanted)

    def teardown(self):
        self.spool.close()
        shutil.rmtree(self.folder)


SpoolAgainstModel.TestCase.settings = settings(
    max_examples=20, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_spool_against_model = SpoolAgainstModel.TestCase
