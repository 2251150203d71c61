import os
import signal
from types import SimpleNamespace
from typing import Any

from twostep.core.child_process import send_signal


def test_a_signal_leaves_the_exit_code_of_a_process_that_has_just_ended_to_who_waits_for_it() -> None:
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    ended: Any = SimpleNamespace(pid=pid, returncode=None)
    send_signal(ended, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    send_signal(ended, signal.SIGTERM)
