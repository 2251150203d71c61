"""Reads EndpointSlices, as the Kubernetes API sends them, and keeps what is known of them. Pure: it calls nobody."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from twostep.core.host_port import join_host_port
from twostep.router.discovery.config import KubernetesDiscovery
from twostep.router.discovery.member import Member, Role

Slice = Mapping[str, Any]
ROLES = ("prefill", "decode")


class EndpointSlices:
    """All slices that the selector names, by uid."""

    def __init__(self, config: KubernetesDiscovery) -> None:
        self._config = config
        self._slices: dict[str, Slice] = {}

    def replace(self, slices: Iterable[Slice]) -> None:
        """Forget everything but `slices`: the answer to a list."""
        self._slices = {_uid(one): one for one in slices}

    def apply(self, kind: str, one: Slice) -> None:
        """Take up one event of a watch: ADDED, MODIFIED or DELETED."""
        if kind == "DELETED":
            self._slices.pop(_uid(one), None)
        else:
            self._slices[_uid(one)] = one

    def members(self) -> list[Member]:
        """Return every node once, though a pod may stand in two slices while it is moved between them."""
        found: dict[Member, Member] = {}
        for member in self._all():
            known = found.get(member)
            if known is None or known.is_leaving:
                found[member] = member
        return sorted(found.values(), key=lambda member: (member.role, member.id, member.address))

    def _all(self) -> Iterator[Member]:
        for one in self._slices.values():
            role = one["metadata"].get("labels", {}).get(self._config.role_label)
            port = next(
                (port.get("port") for port in one.get("ports") or () if port.get("name") == self._config.port_name), None
            )
            if role in ROLES and port:
                yield from (_member(cast(Role, role), endpoint, port) for endpoint in one.get("endpoints") or ())


def _member(role: Role, endpoint: Mapping[str, Any], port: int) -> Member:
    host = endpoint["addresses"][0]
    return Member(
        role,
        join_host_port(host, port),
        id=(endpoint.get("targetRef") or {}).get("uid", ""),
        zone=endpoint.get("zone") or "",
        host=endpoint.get("nodeName") or "",
        # Whether it is ready is between the node and the router. What it cannot say itself is that it was told to go.
        is_leaving=bool((endpoint.get("conditions") or {}).get("terminating")),
    )


def _uid(one: Slice) -> str:
    return str(one["metadata"]["uid"])
