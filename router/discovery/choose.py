"""Which discovery the configuration asks for."""

from twostep.core.errors import ConfigError
from twostep.router.address import require_host_and_port
from twostep.router.config import RouterConfig
from twostep.router.discovery.dns import Dns
from twostep.router.discovery.kubernetes_api import open_api
from twostep.router.discovery.kubernetes_watch import KubernetesWatch
from twostep.router.discovery.member import Discovery
from twostep.router.discovery.static import StaticDiscovery
from twostep.router.discovery.watched_file import WatchedFile


def choose_discovery(config: RouterConfig) -> Discovery:
    """Return what finds the nodes. Raises ConfigError when it could never find enough of them, or there are two ways."""
    chosen = config.discovery
    given = {"file": chosen.file, "dns": chosen.dns, "kubernetes": chosen.kubernetes}
    ways = [f"discovery.{name}" for name, way in given.items() if way]
    if config.prefill or config.decode or not ways:
        ways.insert(0, "prefill and decode")
    if len(ways) > 1:
        raise ConfigError(f"discovery: expected one way to find nodes, found {' and '.join(ways)}")
    if chosen.file:
        return WatchedFile(chosen.file)
    if chosen.kubernetes:
        return KubernetesWatch(chosen.kubernetes, open_api)
    if chosen.dns:
        _require_nodes(chosen.dns.prefill, chosen.dns.decode, "discovery.dns.", config)
        return Dns(chosen.dns)
    _require_nodes(config.prefill, config.decode, "", config)
    return StaticDiscovery(config.prefill, config.decode)


def _require_nodes(prefill: tuple[str, ...], decode: tuple[str, ...], section: str, config: RouterConfig) -> None:
    if not decode:
        raise ConfigError(f"{section}decode: expected at least one decode node's host:port, found none")
    if not prefill and not config.allow_decode_alone:
        raise ConfigError(f"{section}prefill: expected at least one prefill node's host:port, or allow_decode_alone=true")
    for address in (*prefill, *decode):
        require_host_and_port(address)
