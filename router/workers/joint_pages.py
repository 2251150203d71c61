"""Makes one page of what all workers tell. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
BARE = re.compile(rb"^(\w+) ", re.MULTILINE)
LABELLED = re.compile(rb"^(\w+)\{", re.MULTILINE)
"""A sample's name at the start of its line, without labels and with."""
FAMILY = re.compile(rb"^(?=# HELP )", re.MULTILINE)


def joint_metrics(pages: Mapping[int, bytes]) -> bytes:
    """Return one page in Prometheus' text format, each sample labelled with its `worker`.

    A worker that is started anew counts from nothing: sums over workers would fall, which a counter must not.
    """
    families: dict[bytes, list[bytes]] = {}
    for number, page in pages.items():
        for name, head, samples in _families(page):
            families.setdefault(name, [head]).append(_labelled(samples, number))
    return b"".join(part for parts in families.values() for part in parts)


def joint_readiness(reports: Mapping[int, Report | None]) -> Report:
    """Return what the worker tells that is worst off: all are ready, or the router is not. `workers` says it of each.

    None stands for a worker that does not answer.
    """
    told = [report for report in reports.values() if report is not None]
    worst = min(told, key=lambda report: (report["ready"], report["proven_pairs"]))
    workers = {str(number): report is not None and report["ready"] for number, report in reports.items()}
    return {**worst, "ready": all(workers.values()), "workers": workers}


def latest_story(stories: Sequence[Report]) -> Report | None:
    """Return the story of the request that came last: workers may know others of the same name, which clients choose."""
    return max(stories, key=lambda story: float(story["arrived_at"]), default=None)


def _families(page: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield each family's name, its two lines of comment, and its samples."""
    for family in FAMILY.split(page):
        if family:
            about, kind, samples = family.split(b"\n", 2)
            yield about.split(b" ", 3)[2], about + b"\n" + kind + b"\n", samples


def _labelled(samples: bytes, number: int) -> bytes:
    worker = b'\\1{worker="%d"' % number
    return BARE.sub(worker + b"} ", LABELLED.sub(worker + b",", samples))
