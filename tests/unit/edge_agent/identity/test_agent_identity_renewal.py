"""When a certificate is renewed, by whom, and what happens when it cannot be."""

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from edge_agent.identity.files import Identity, IdentityFiles
from edge_agent.identity.renewal_service import Renewal
from protocol.errors import Misconfigured, Reason, Refused, Transient
from tests.support.clock import ManualClock
from tests.support.identity.pki import Pki
from tests.support.identity.stub import Stub, refusal
from tests.support.python import python
from tests.support.services import beside

ROOT = Path(__file__).parents[4]
DAY_S = 86400.0
BEGIN = 1_700_000_000.0
LIFE_S = 90 * DAY_S


class Script:
    """A worker that does what it is told, and renews when it is told nothing more."""

    def __init__(self, folder: IdentityFiles, clock: ManualClock, *errors: Exception) -> None:
        self.folder, self.clock, self.errors = folder, clock, list(errors)
        self.calls: list[float] = []
        self.ages = False
        """What it brings has run out already."""

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        assert job_dir == self.folder.path
        assert timeout_s > 60
        self.calls.append(self.clock.wall())
        if self.errors:
            raise self.errors.pop(0)
        write(self.folder, self.clock.wall() - (LIFE_S if self.ages else 0.0))


def write(folder: IdentityFiles, issued_at: float) -> Identity:
    folder.make()
    identity = Identity(
        fleet="test",
        device="d1",
        url="https://c:8443",
        ca_sha256="0" * 64,
        invite_sha256="0" * 64,
        issued_at=issued_at,
        not_after=issued_at + LIFE_S,
        serial="ab",
    )
    folder.write(folder.record, identity.model_dump_json().encode())
    return identity


@pytest.fixture
def folder(tmp_path):
    return IdentityFiles(tmp_path / "identity")


class Bench:
    """A renewal that runs on a clock moved by hand."""

    def __init__(self, folder: IdentityFiles, *errors: Exception, wall: float = BEGIN) -> None:
        self.clock = ManualClock(wall=wall)
        self.worker = Script(folder, self.clock, *errors)
        self.renewed: list[float] = []
        self.renewal = Renewal(
            folder,
            self.clock,
            lambda: self.renewed.append(self.clock.wall()),
            worker=self.worker,
            rng=random.Random(7),
        )

    async def __aenter__(self):
        self.task = asyncio.create_task(self.renewal.run())
        await self.settle()
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled() or self.task.exception() is None

    async def settle(self) -> None:
        """Until it waits for a time again: the record is read in a thread, however long that takes."""
        async with asyncio.timeout(20):
            while not (self.clock.asleep or self.task.done()):  # noqa: ASYNC110 - a thread has no event here
                await asyncio.sleep(0.001)

    async def advance(self, seconds: float, step: float = 3600.0) -> None:
        passed = 0.0
        while passed < seconds:
            await self.clock.advance(min(step, seconds - passed))
            await self.settle()
            passed += step


async def test_renewed_at_two_thirds_of_its_life_and_then_again(folder):
    write(folder, BEGIN)
    async with Bench(folder) as bench:
        await bench.advance(59 * DAY_S, 6 * 3600)
        assert not bench.worker.calls
        assert "renewed from" in bench.renewal.why
        await bench.advance(6 * DAY_S, 3600)
        assert len(bench.worker.calls) == 1
        share = (bench.worker.calls[0] - BEGIN) / LIFE_S
        assert 2 / 3 <= share <= 2 / 3 + 1 / 20 + 0.01
        assert bench.renewed == bench.worker.calls
        await bench.advance(50 * DAY_S, 12 * 3600)
        assert len(bench.worker.calls) == 1, "the new one has its own life"


async def test_devices_do_not_come_all_at_once(folder):
    identity = write(folder, BEGIN)
    clock = ManualClock()
    due = {
        round(Renewal(folder, clock, lambda: None, rng=random.Random(s)).due_at(identity)) for s in range(50)
    }
    assert len(due) == 50
    assert max(due) - min(due) > 3 * DAY_S


async def test_it_waits_longer_and_longer_and_says_why(folder):
    write(folder, BEGIN)
    errors = [Transient("nobody there") for _ in range(12)]
    async with Bench(folder, *errors, wall=BEGIN + 0.75 * LIFE_S) as bench:
        assert "nobody there" in bench.renewal.why
        assert "holds until" in bench.renewal.why
        assert bench.renewal.since == bench.clock.wall()
        assert 30 <= bench.renewal.until - bench.clock.wall() <= 60
        await bench.advance(3600, 60)
        await bench.advance(2 * DAY_S, 1200)
        calls = bench.worker.calls
        waits = [b - a for a, b in itertools.pairwise(calls)]
        assert len(calls) == 13
        assert waits[0] <= 121
        assert all(wait <= 6 * 3600 + 1200 for wait in waits)
        assert waits[8] > 10 * waits[0]
        assert len(bench.renewed) == 1
        assert bench.renewal.since is None


@pytest.mark.parametrize(
    "error", [Refused(Reason.REVOKED, "taken back"), Misconfigured("damaged")], ids=["revoked", "damaged"]
)
async def test_what_only_a_person_can_mend_is_tried_slowly(folder, error):
    write(folder, BEGIN)
    async with Bench(folder, error, wall=BEGIN + 2 * LIFE_S) as bench:
        assert "has run out" in bench.renewal.why
        assert error.args[0].split(": ")[-1] in bench.renewal.why
        await bench.advance(2 * 3600, 60)
        assert len(bench.worker.calls) == 1
        await bench.advance(4.1 * 3600, 60)
        assert len(bench.worker.calls) == 2, "the operator may have approved it again"


async def test_a_clock_that_stays_at_1970_does_not_keep_it_from_renewing(folder):
    write(folder, BEGIN)
    async with Bench(folder, wall=1000.0) as bench:
        await bench.advance(59 * DAY_S, 6 * 3600)
        assert not bench.worker.calls
        await bench.advance(6 * DAY_S, 3600)
        assert len(bench.worker.calls) == 1, "what has passed since the start is known without a clock"


async def test_a_clock_that_jumps_ahead_costs_one_renewal_and_no_storm(folder):
    write(folder, BEGIN)
    async with Bench(folder, wall=BEGIN + 100 * LIFE_S) as bench:
        await bench.advance(DAY_S, 600)
        assert len(bench.worker.calls) == 1


async def test_certificates_that_are_due_at_once_make_no_storm(folder):
    write(folder, BEGIN)
    bench = Bench(folder, wall=BEGIN + LIFE_S)
    bench.worker.ages = True
    async with bench:
        await bench.advance(3600.0, 10)
        assert 10 < len(bench.worker.calls) <= 61


async def test_no_identity_no_service(folder):
    renewal = Renewal(folder, ManualClock(), lambda: None)
    assert renewal.services() == {}
    write(folder, BEGIN)
    assert set(renewal.services()) == {"renewal"}


async def test_a_damaged_record_ends_the_service_in_words_and_not_the_agent(folder):
    write(folder, BEGIN)
    folder.record.write_text("{")
    async with Bench(folder) as bench:
        await asyncio.wait([bench.task], timeout=5)
        assert bench.task.done()
        assert "damaged; enrol this device again" in bench.renewal.why


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


class Later:
    """The machine's clock, eighty days on."""

    def __init__(self) -> None:
        self._manual = ManualClock()

    def now(self) -> float:
        return self._manual.now()

    def wall(self) -> float:
        import time  # noqa: PLC0415 - only here

        return time.time() + 80 * DAY_S

    async def sleep(self, seconds: float) -> None:
        await self._manual.sleep(seconds)


async def test_the_real_child_process_renews(pki, tmp_path):
    with Stub(pki) as stub:
        folder = pki.enrolled(tmp_path, "d1", stub.url)
        before, serial = folder.pair.read_bytes(), folder.read().serial
        done = asyncio.Event()
        renewal = Renewal(folder, Later(), done.set)
        async with beside(renewal.run()):
            async with asyncio.timeout(20):
                await done.wait()
        assert folder.read().serial != serial
        assert folder.pair.read_bytes() != before
        assert not folder.next_key.exists()


async def test_a_refusal_reaches_the_daemon_through_the_child_process(pki, tmp_path):
    with Stub(pki) as stub:
        folder = pki.enrolled(tmp_path, "d1", stub.url)
        before = folder.pair.read_bytes()
        stub.on_request = lambda _path, _body: refusal(Reason.REVOKED, "d1 was revoked on Monday")
        renewal = Renewal(folder, Later(), lambda: None)
        async with beside(renewal.run()):
            async with asyncio.timeout(20):
                while "revoked on Monday" not in renewal.why:  # noqa: ASYNC110 - words are polled, as status does
                    await asyncio.sleep(0.02)
        assert folder.pair.read_bytes() == before


def test_the_daemon_imports_no_crypto_library():
    code = "import sys, edge_agent.app; print(sorted(m for m in sys.modules if m.startswith('cryptography')))"
    done = python("-c", code)
    assert done.stdout.strip() == "[]"
