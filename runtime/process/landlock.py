"""Landlock: a process gives up access to files and the network, for good and without privileges.

Linux 5.13 and newer, if the kernel has it (Debian's has). Afterwards the process may open only what it named;
open files and mapped pages stay. It holds for the calling thread and all that it starts: call it while there
is one thread.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System call numbers, the same on every processor that Debian runs on."""
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE: Final = _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
_CREATE: Final = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13
"""Remove a folder or a file, make a folder or a file, move between folders. No links, no devices."""
_OF_A_FILE: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_KNOWN: Final = ((1, 13), (2, 14), (3, 15), (5, 16))
"""Number of file access rights, by the Landlock version that introduced them."""
_NETWORK_SINCE: Final = 4
_TCP: Final = 0b11
"""Bind and connect."""
_SCOPES_SINCE: Final = 6
_SCOPES: Final = 0b11
"""Abstract Unix sockets, and signals, of processes outside the same restriction."""


def version() -> int:
    """Landlock's version in this kernel; 0 if there is none, or a system call filter forbids it."""
    if sys.platform != "linux":
        return 0
    try:
        return _call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def restrict(
    *, read: Iterable[Path], write: Iterable[Path] = (), create: Iterable[Path] = (), network: bool = False
) -> bool:
    """Restrict this thread to read and execute ``read`` and what is below, and to write ``write``.

    Args:
        read: files and folders; missing ones are left out.
        write: as above; existing files can be written, none can be created.
        create: folders in which files and folders can also be created, renamed and removed.
        network: whether it may bind and connect TCP sockets (enforced by kernels from 6.7 on).

    Returns:
        False if this kernel has no Landlock: nothing has changed.

    Raises:
        OSError: it has, and refuses; nothing has changed.
    """
    abi = version()
    if not abi:
        return False
    handled = (1 << max(count for since, count in _KNOWN if since <= abi)) - 1
    ruleset = _ruleset(abi, handled, network=network)
    try:
        for paths, rights in ((read, _READ), (write, _READ | _WRITE), (create, _READ | _WRITE | _CREATE)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        _no_new_privileges()
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def hide(paths: Iterable[Path]) -> bool:
    """Deny this thread ``paths`` and all below, whether they exist or not.

    Landlock has no "all but": everything beside each of the parent folders is allowed instead. So an entry
    that is created later directly in one of these folders is denied as well. File names can still be listed
    everywhere.

    Args:
        paths: absolute, without links.

    Returns:
        False if this kernel has no Landlock: nothing has changed.

    Raises:
        OSError: it has, and refuses, or a parent folder cannot be listed; nothing has changed.
    """
    abi = version()
    if not abi:
        return False
    handled = (1 << max(count for since, count in _KNOWN if since <= abi)) - 1
    ruleset = _ruleset(abi, handled, network=True)
    try:
        _allow(ruleset, Path("/"), _READ_DIR)
        for path in _beside(set(paths)):
            _allow(ruleset, path, handled)
        _no_new_privileges()
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def _beside(hidden: Collection[Path]) -> Iterator[Path]:
    """The entries of all parent folders of the hidden paths, except these; of links, only their targets."""
    waiting = [Path("/")]
    while waiting:
        for path in waiting.pop().iterdir():
            if path in hidden or path.is_symlink():
                continue
            if any(one.is_relative_to(path) for one in hidden):
                waiting.append(path)
            else:
                yield path


def _ruleset(abi: int, handled: int, *, network: bool) -> int:
    """Its size tells the kernel which version of the structure this is."""
    attributes = struct.pack("=Q", handled)
    if abi >= _NETWORK_SINCE:
        attributes += struct.pack("=Q", 0 if network else _TCP)
    if abi >= _SCOPES_SINCE:
        attributes += struct.pack("=Q", _SCOPES)
    return _call(_CREATE_RULESET, attributes, len(attributes), 0)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
            return
        raise
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_A_FILE
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _no_new_privileges() -> None:
    """Required by the kernel: no program that is executed gains rights."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs is refused")


def _call(number: int, *arguments: int | bytes | None) -> int:
    """A system call; raises OSError."""
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *given)
    if result < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, f"system call {number}: {os.strerror(failed)}")
    return result
