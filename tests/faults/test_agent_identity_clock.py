"""Enrolment and connections of a device whose clock is wrong: at 1970, behind, ahead."""

import email.utils
import time

import pytest

from edge_agent.identity.enrolment import enrol
from edge_agent.identity.files import folder_of
from edge_agent.identity.renewal_job import renew
from edge_agent.identity.retry import RetryPolicy
from protocol.enrolment import CA_PATH
from protocol.errors import Refused, Transient
from tests.support.identity.broker import SecuredBroker, connected, turned_away
from tests.support.identity.pki import DAY_S, Pki
from tests.support.identity.stub import Stub


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def years_ahead(tmp_path_factory):
    """An authority twenty years from now: our clock stands twenty years behind, as if at 1970."""
    return Pki(tmp_path_factory.mktemp("ahead"), ahead_s=20 * 365 * DAY_S)


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "state")


def once(folder, stub):
    return enrol(folder, stub.invite(), "d1", RetryPolicy(0.0, lambda _: None), timeout_s=5.0).identity


def test_a_device_without_the_time_enrols_and_keeps_the_true_one(years_ahead, folder):
    with Stub(years_ahead) as stub:
        true = years_ahead.time()
        stub.date = email.utils.formatdate(true, usegmt=True)
        identity = once(folder, stub)
        assert identity.issued_at == pytest.approx(true, abs=2)
        renew(folder)
        assert folder.read().serial != identity.serial


def test_a_device_without_the_time_is_still_not_fooled(years_ahead, folder, tmp_path):
    (tmp_path / "other").mkdir()
    mallory = Pki(tmp_path / "other", ahead_s=20 * 365 * DAY_S)
    with (
        Stub(years_ahead, certificate=mallory.server()) as stub,
        pytest.raises(Refused, match="nothing was sent"),
    ):
        once(folder, stub)
    assert stub.paths() == [CA_PATH]


def test_a_service_that_was_renewed_after_our_clock_stopped(pki, folder):
    with Stub(pki, certificate=pki.dated_server(5 * DAY_S, 90 * DAY_S)) as stub:
        assert once(folder, stub).device == "d1"


def test_a_clock_ahead_is_named_and_tried_again(pki, folder):
    with Stub(pki, certificate=pki.dated_server(-30 * DAY_S, -DAY_S)) as stub:
        with pytest.raises(Transient, match=r"expired; this machine's clock says 20.*is it right\?"):
            once(folder, stub)
        assert stub.paths() == [CA_PATH]


@pytest.mark.mosquitto
async def test_the_broker_is_believed_with_a_clock_behind_and_not_with_one_ahead(pki, tmp_path):
    broker = SecuredBroker(tmp_path / "mosquitto", pki)
    shown = pki.device("d1")
    server = tmp_path / "mosquitto" / "server.pem"
    server.write_bytes(pki.dated_server(DAY_S, 90 * DAY_S).read_bytes())
    broker.process.start()
    try:
        async with connected(shown.mqtt(broker.port), "x", []) as client:
            assert client.link.counters.reconnects == 0
        server.write_bytes(pki.dated_server(-30 * DAY_S, -DAY_S).read_bytes())
        broker.process.restart()
        words = await turned_away(shown.mqtt(broker.port))
        assert "expired" in words
        assert "this machine's clock says" in words
    finally:
        broker.process.stop()


def test_an_expired_certificate_can_still_be_renewed(pki, tmp_path):
    with Stub(pki) as stub:
        folder = pki.enrolled(tmp_path, "d1", stub.url, days=-0.5)
        assert folder.read().not_after < time.time()
        renew(folder)
        assert folder.read().not_after > time.time() + 80 * DAY_S
