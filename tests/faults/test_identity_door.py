"""The door of the enrolment service when it stops, and when the network is against it."""

import asyncio
import errno
import logging
import threading

import pytest

from protocol.enrolment import CA_PATH, ENROL_PATH
from tests.support.identity.desk import csr, new_key, service

HOUR = 3600.0


async def test_a_stop_with_requests_that_wait_leaves_no_trace(tmp_path, monkeypatch, caplog) -> None:
    held, asked = threading.Event(), threading.Event()

    def claim(*_: object) -> None:
        asked.set()
        held.wait(10)

    with caplog.at_level(logging.ERROR):
        try:
            async with service(tmp_path) as client:
                token = client.desk.invite("pi-1", HOUR).token
                monkeypatch.setattr(client.desk.book, "claim", claim)
                waiting = [
                    asyncio.create_task(
                        client.post(ENROL_PATH, token=token, device="pi-1", csr=csr(new_key()))
                    )
                    for _ in range(4)
                ]
                assert await asyncio.to_thread(asked.wait, 5)
                state = client.office.door._state
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(one, Exception) for one in answers), "each was cut"
            assert not state.tasks, "and nothing of theirs goes on"
        finally:
            held.set()
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("code", [errno.EPROTO, errno.EHOSTUNREACH, errno.EPERM, errno.ENOMEM, errno.EMFILE])
async def test_an_error_of_the_network_is_no_end_of_the_coordinator(tmp_path, monkeypatch, code) -> None:
    """accept(2): errors of the new connection come out of it, too."""
    monkeypatch.setattr("coordinator.identity.http_api.listener._PAUSE_S", 0.01)
    async with service(tmp_path) as client:
        loop = asyncio.get_running_loop()
        accept, left = loop.sock_accept, [2]

        async def failing(sock):
            if left[0]:
                left[0] -= 1
                raise OSError(code, "of the network")
            return await accept(sock)

        monkeypatch.setattr(loop, "sock_accept", failing)
        assert (await client.ask("GET", CA_PATH)).status == 200, "the accept that waited before"
        assert (await client.ask("GET", CA_PATH)).status == 200
        assert left == [0]
