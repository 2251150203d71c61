"""Runs another program as a module, tied to the life of the process PID that started it.

Usage: `python -m twostep.core.tethered PID MODULE ARGUMENT...`. The kernel kills this process as soon as its parent ends,
in whatever way, so that no node outlives its `twostep up`.
"""

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, and exit if `parent` is dead already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(f"the process {parent} that started this one has ended")


if __name__ == "__main__":
    _, parent_id, module, *sys.argv[1:] = sys.argv
    die_with(int(parent_id))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
