"""How full a node is, and how many nodes Serve should keep for that. Pure; Serve's controller loads this file alone."""

from collections.abc import Mapping
from typing import Any, Protocol

LOAD = "twostep_load"
"""The name under which replicas tell how full their nodes are: 1 at the targets."""


class Pool(Protocol):
    """What is read of Serve's `AutoscalingContext`."""

    target_num_replicas: int

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...


def replicas_for_load(pool: Pool) -> tuple[float, dict[str, Any]]:
    """Serve's autoscaling policy: as many nodes as the load of all would fill; before any has told, as many as there are.

    Serve rounds up, keeps its bounds, and waits its delays.
    """
    loads = (pool.aggregated_metrics or {}).get(LOAD)
    if not loads:
        return pool.target_num_replicas, {}
    return sum(loads.values()), {}
