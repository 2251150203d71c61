"""Where the router can find its nodes, other than in its own list of addresses."""

from pathlib import Path

from twostep.core.config import Seconds, config


@config
class FileDiscovery:
    path: Path
    """A YAML or JSON file with the lists `prefill` and `decode`, of `host:port` or of `{address, id, zone, host, leaving}`."""
    poll_s: Seconds = 1.0
    """How often the file is looked at."""


@config
class DnsDiscovery:
    prefill: tuple[str, ...] = ()
    """Names with ports, `name:port`; every address of a name is a prefill node."""
    decode: tuple[str, ...] = ()
    refresh_s: Seconds = 5.0
    """How often the names are looked up."""


@config
class KubernetesDiscovery:
    namespace: str = ""
    """The namespace of the nodes' EndpointSlices; by default the router's own."""
    selector: str = ""
    """The label selector of these EndpointSlices, which have the labels of their Services."""
    role_label: str = "twostep.dev/role"
    """The label that says `prefill` or `decode`."""
    port_name: str = "grpc"
    """The name of the port on which nodes take calls."""
    kubeconfig: Path | None = None
    """For a router outside of the cluster; by default the service account that Kubernetes gives to a pod."""
    watch_s: Seconds = 60.0
    """How long one watch lasts before it is opened anew: the longest that a connection which died unnoticed goes unnoticed."""
    resync_s: Seconds = 600.0
    """How often everything is listed anew, lest a change that was missed is missed for ever."""


@config
class DiscoveryConfig:
    """At most one of these, and then neither `prefill` nor `decode`."""

    file: FileDiscovery | None = None
    dns: DnsDiscovery | None = None
    kubernetes: KubernetesDiscovery | None = None
