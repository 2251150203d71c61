"""`twostep` as a process of its own: the command line as a person or a script meets it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from twostep.tests.processes import commands

COMMAND = (sys.executable, "-c", "import sys; from twostep.cli.entry import main; sys.exit(main())")
END_S = 60.0


@dataclass(frozen=True, slots=True)
class Up:
    """A running `twostep up` and the line that it printed."""

    process: subprocess.Popen[str]
    folder: Path
    line: str

    @property
    def url(self) -> str:
        return self.line.split()[3]

    def children(self) -> dict[str, int]:
        """Return the process id of each child by the name of its program's module."""
        rows = commands(self.process.pid).items()
        return {row[row.index("twostep.core.tethered") + 2].removeprefix("twostep."): pid for pid, row in rows}

    def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was complained about."""
        assert self.process.stderr
        complaint = self.process.stderr.read()
        return self.process.wait(END_S), complaint


@contextmanager
def up(folder: Path, *options: str) -> Iterator[Up]:
    """Run `twostep up` on any free port, its own files in `folder`, and wait for its line, empty when it ends before."""
    command = (*COMMAND, "up", "--port", "0", *options)
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            yield Up(process, folder, process.stdout.readline())
        finally:
            process.kill()
