"""One step of verification in a process of its own: it loads 9 MB that an agent needs once a day.

``python -P -m edge_agent.trust.verify_process`` reads an :class:`VerifyRequest` from standard input and
writes a :class:`VerifyResult`.
"""

import asyncio
import sys
from typing import Annotated, Final, Literal

from pydantic import Field

from edge_agent.trust.trusted_metadata import MAX_KEPT_BYTES, TrustedMetadata
from protocol.base import Frozen
from protocol.errors import Reason, Refused, Transient
from protocol.trust.decisions import read_decision
from protocol.trust.signed_work import SignedOffer, SignedTask, read_signed

TIMEOUT_S: Final = 60.0
EncodedMetadata = Annotated[str, Field(max_length=MAX_KEPT_BYTES)]
Role = Literal["root", "timestamp", "snapshot", "targets", "decision", "task", "offer"]
"""The last three are not metadata; they are verified against the trusted metadata, which does not change."""


class VerifyRequest(Frozen):
    """The trusted metadata (:meth:`TrustedMetadata.encode`), and a new piece; ``now``: Unix seconds."""

    kept: EncodedMetadata
    role: Role
    data: Annotated[str, Field(max_length=MAX_KEPT_BYTES)]
    now: float


class VerifyResult(Frozen):
    """The trusted metadata after the step, or the refusal."""

    kept: EncodedMetadata | None = None
    reason: Reason | None = None
    detail: str = ""


def step(trusted: TrustedMetadata, role: Role, data: bytes, now: float) -> TrustedMetadata:
    """Verify one piece, in this process.

    Raises:
        Refused: see :class:`TrustedMetadata`.
    """
    if trusted.timestamp is None:  # at the start its file was only read
        TrustedMetadata.begin(trusted.root.data)
    match role:
        case "root":
            return trusted.with_root(data)
        case "timestamp":
            return trusted.with_timestamp(data, now)
        case "snapshot":
            return trusted.with_snapshot(data, now)
        case "targets":
            return trusted.with_targets(data, now)
        case "decision":
            _, envelope = read_decision(data.decode())
        case "task":
            _, envelope = read_signed(SignedTask, data.decode())
        case "offer":
            _, envelope = read_signed(SignedOffer, data.decode())
    trusted.root.said.require(envelope, "targets", role)
    return trusted


async def step_in_child(trusted: TrustedMetadata, role: Role, data: bytes, now: float) -> TrustedMetadata:
    """As :func:`step`, in a child process.

    Raises:
        Refused: see :func:`step`.
        Transient: the process failed, or did not end within ``TIMEOUT_S``.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Refused(Reason.MALFORMED, f"{role}: not UTF-8") from None
    ask = VerifyRequest(kept=trusted.encode().decode(), role=role, data=text, now=now)
    try:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "edge_agent.trust.verify_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise Transient(f"verifying: {error.strerror}") from None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, _ = await child.communicate(ask.model_dump_json().encode())
    except TimeoutError:
        raise Transient(f"verifying took more than {TIMEOUT_S:.0f} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        raise Transient(f"the process that verifies ended with {child.returncode}")
    told = VerifyResult.model_validate_json(out)
    if told.kept is None:
        raise Refused(told.reason or Reason.MALFORMED, told.detail)
    return TrustedMetadata.decode(told.kept.encode())


def main() -> int:
    """Exit status 0: the answer is on standard output."""
    ask = VerifyRequest.model_validate_json(sys.stdin.buffer.read())
    try:
        trusted = step(TrustedMetadata.decode(ask.kept.encode()), ask.role, ask.data.encode(), ask.now)
        told = VerifyResult(kept=trusted.encode().decode())
    except Refused as error:
        told = VerifyResult(reason=error.reason, detail=error.detail)
    sys.stdout.write(told.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
