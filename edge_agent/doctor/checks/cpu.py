"""The processor: wheels are built for some processors, and crash on others."""

import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from edge_agent.doctor.findings import MIB, Finding, fail, ok, warn

_CPUINFO: Final = Path("/proc/cpuinfo")
_TRAIN_MIB: Final = 900
_RUN_MIB: Final = 200


@dataclass(frozen=True)
class Processor:
    """Attributes: ``bits`` of this Python (the kernel may have more); ``flags`` as Linux names them."""

    machine: str
    bits: int
    flags: frozenset[str]
    cores: int
    memory_bytes: int
    python: tuple[int, int]


def probe() -> Processor:
    """The processor of this machine."""
    return Processor(
        platform.machine(),
        64 if sys.maxsize > 2**32 else 32,
        flags_of(
            _CPUINFO.read_text(encoding="utf-8", errors="replace") if _CPUINFO.is_file() else "",
            platform.machine(),
        ),
        os.cpu_count() or 1,
        psutil.virtual_memory().total,
        sys.version_info[:2],
    )


def flags_of(cpuinfo: str, machine: str) -> frozenset[str]:
    """``Features`` (ARM) or ``flags`` (others) of the first processor.

    None if they are another architecture's: an emulator may show the file of the machine that it runs on.
    """
    wanted = "Features" if machine in ("aarch64", "armv7l", "armv6l") else "flags"
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == wanted:
            return frozenset(value.split())
    return frozenset()


def judge(found: Processor, roles: Iterable[str]) -> list[Finding]:
    """Architecture, instructions, memory."""
    words = (
        f"{found.machine}, {found.bits} bits, {found.cores} cores, {found.memory_bytes // MIB} MiB of memory"
    )
    return [_architecture(found, words), *_instructions(found), *_memory(found, "train" in tuple(roles))]


def _architecture(found: Processor, words: str) -> Finding:
    check = "cpu.architecture"
    if found.bits == 32:  # noqa: PLR2004 - bits of a pointer
        return fail(
            check,
            words,
            "install a 64-bit system: onnxruntime, torch and uvloop have no 32-bit wheels "
            "(without them the agent only collects; then set infer.enabled = false)",
        )
    if found.machine not in ("x86_64", "aarch64"):
        return warn(check, words, "lichen is tried on x86_64 and aarch64; see below what can be imported")
    return ok(check, words)


def _instructions(found: Processor) -> list[Finding]:
    check = "cpu.instructions"
    if not found.flags:
        words = f"/proc/cpuinfo names no instructions of {found.machine} (is it emulated?)"
        return [warn(check, words, "trust the imports below, not this")]
    if found.machine == "aarch64" and "atomics" not in found.flags:
        return [
            warn(
                check,
                "ARMv8.0 without LSE atomics, as on a Raspberry Pi 3 or 4",
                "wheels of onnxruntime and torch that need them die with SIGILL: see the imports below, and "
                "pin the versions that work here in /etc/lichen/constraints.txt, which install.sh heeds",
            )
        ]
    if found.machine == "x86_64" and "avx2" not in found.flags:
        todo = "wheels may need it, and inference is slow without it: see the imports below"
        return [warn(check, "no AVX2", todo)]
    dot = {"aarch64": "asimddp", "x86_64": "avx512_vnni"}.get(found.machine, "")
    fast = "with" if dot in found.flags or "avx_vnni" in found.flags else "without"
    return [ok(check, f"what wheels need; {fast} dot products of int8 (the agent measures what is faster)")]


def _memory(found: Processor, trains: bool) -> list[Finding]:  # noqa: FBT001 - one fact about the device
    need = _TRAIN_MIB if trains else _RUN_MIB
    if found.memory_bytes >= need * MIB:
        return []
    todo = 'use the role "prototype" instead of "train"' if trains else "close other programs, or add swap"
    return [warn("cpu.memory", f"{found.memory_bytes // MIB} MiB of memory; {need} MiB are wanted", todo)]
