"""Estimates when those at the head of the queue will have what they need, from the pace at which it comes back. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from twostep.core.turnover import Supply


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request still has to get before it has everything."""

    blocks: int
    places: int
    landing_bytes: int


@dataclass(frozen=True, slots=True)
class Supplies:
    """All that requests wait for; `unattached` are the blocks that requests without their KV may hold together."""

    blocks: Supply
    places: Supply
    landing_bytes: Supply
    unattached: Supply


def estimate_s(demands: Iterable[Demand], supplies: Supplies) -> float | None:
    """Return in how many seconds there will be room for all of `demands`; None while nothing is known about the pace."""
    listed = tuple(demands)
    blocks = sum(one.blocks for one in listed)
    waits_s = (
        supplies.blocks.wait_s(blocks),
        supplies.unattached.wait_s(blocks),
        supplies.places.wait_s(sum(one.places for one in listed)),
        supplies.landing_bytes.wait_s(sum(one.landing_bytes for one in listed)),
    )
    known_s = [wait_s for wait_s in waits_s if wait_s is not None]
    return max(known_s) if len(known_s) == len(waits_s) else None
