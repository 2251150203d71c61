"""The first moments of the command `twostep`."""

import subprocess
import sys

import pytest

from twostep.cli.entry import INTERRUPTED

pytestmark = pytest.mark.processes

INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from twostep.cli.entry import main
sys.argv = ["twostep", "--version"]
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["twostep.cli.main", "rich.console", "grpc"])
def test_an_interrupt_while_the_command_is_loaded_ends_it_without_a_word(module: str) -> None:
    code = INTERRUPTED_WHILE_LOADING.format(module=module)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (INTERRUPTED, "", "")


def test_without_an_interrupt_it_runs_the_command() -> None:
    code = INTERRUPTED_WHILE_LOADING.format(module="no.such.module")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("twostep ")
