"""Root at a service's files: it acts as their owner, so that it can make nothing that the service may not.

A folder that belongs to a service's user may hold whatever that user put there, a link to a folder of root's
too. Who wrote there as root and gave the files away afterwards would give away what the link points to.
"""

import contextlib
import os
import pwd
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def run_as_owner(folder: Path) -> Iterator[None]:
    """Root acts as the user who owns the folder: else the daemon could not write what root has made there."""
    if os.geteuid() != 0 or not folder.is_dir() or folder.stat().st_uid == 0:
        yield
        return
    owner, groups = folder.stat(), os.getgroups()
    try:
        name = pwd.getpwuid(owner.st_uid).pw_name
        os.setgroups(os.getgrouplist(name, owner.st_gid))
    except KeyError:
        os.setgroups([owner.st_gid])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
