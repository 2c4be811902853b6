"""The system call filter of the coordinator's unit, without systemd.

``SystemCallFilter=~@privileged`` denies ``chown``, ``RestrictSUIDSGID=yes`` a ``chmod`` that sets such a bit.
"""

import ctypes
import errno
import os
import platform
import struct
from typing import Final

_CHOWN: Final = {"x86_64": (92, 93, 94, 260), "aarch64": (54, 55)}
_CHMOD: Final = {"x86_64": {90: 1, 91: 1, 268: 2, 452: 2}, "aarch64": {52: 1, 53: 2, 452: 2}}
"""Number of the call -> index of the mode argument."""
_LOAD, _EQUAL, _ANY_OF, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def take_calls_away() -> None:
    """From here on a change of owner, and a setuid or setgid bit, give EPERM."""
    machine = platform.machine()
    refuse = struct.pack("HBBI", _RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = struct.pack("HBBI", _RETURN, 0, 0, _ALLOW)
    number = struct.pack("HBBI", _LOAD, 0, 0, 0)
    code = []
    for call in _CHOWN[machine]:
        code += [number, struct.pack("HBBI", _EQUAL, 0, 1, call), refuse]
    for call, argument in _CHMOD[machine].items():
        mode = struct.pack("HBBI", _LOAD, 0, 0, 16 + 8 * argument)
        bits = struct.pack("HBBI", _ANY_OF, 0, 1, 0o6000)
        code += [number, struct.pack("HBBI", _EQUAL, 0, 4, call), mode, bits, refuse, allow]
    program = b"".join([*code, allow])
    held = ctypes.create_string_buffer(program, len(program))
    given = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, given, 0, 0)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
