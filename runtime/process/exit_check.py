"""Whether a child process of ours has ended, as the kernel knows it."""

import os


def has_ended(pid: int) -> bool:
    """True also where the event loop has not been told yet: SIGCHLD may still be on its way.

    Nothing is reaped: the loop's own wait still gets the status. Where the system cannot say (macOS): False.
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped already
        return True
