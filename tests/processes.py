"""What the kernel tells of processes."""

from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the processes that this one's main thread has started and that are still there."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def commands(pid: int) -> dict[int, list[str]]:
    """Return the command line of each of its children; an empty one of a child that has just ended."""
    return {child: _command(child) for child in children(pid)}


def is_gone(pid: int) -> bool:
    """Whether the process has ended, even if nobody has asked for its exit code yet."""
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except FileNotFoundError:
        return []
