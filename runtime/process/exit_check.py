"""Whether a child process of ours has ended, according to the kernel."""

import os


def has_ended(pid: int) -> bool:
    """True even if the event loop does not know yet: SIGCHLD may still be on its way.

    Nothing is reaped: the loop's own wait still gets the status. False if the system cannot tell (macOS).
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped already
        return True
