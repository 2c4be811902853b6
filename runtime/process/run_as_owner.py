"""Root acts as the owner of a service's files, so that it can create nothing that the service may not.

A folder that belongs to a service's user may hold anything that user put there, even a link to a folder of
root. If root wrote there and then changed the owner, it would give away the link's target.
"""

import contextlib
import os
import pwd
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def run_as_owner(folder: Path) -> Iterator[None]:
    """Root acts as the folder's owner: else the daemon could not write the files that root creates."""
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
