"""What the environment tells UCX, whichever transport runs over it."""

import logging
import os

NARROWING = ("UCX_TLS", "UCX_NET_DEVICES")
logger = logging.getLogger(__name__)


def what_narrows_ucx() -> tuple[str, ...]:
    """Return the settings that narrow what UCX may choose, such as `UCX_TLS=tcp`."""
    return tuple(f"{name}={os.environ[name]}" for name in NARROWING if os.environ.get(name))


def keep_ucx_quiet() -> None:
    """Keep UCX's own log out of stdout, which belongs to the program."""
    os.environ.setdefault("UCX_LOG_FILE", "stderr")


def keep_tcp() -> None:
    """Make sure that UCX may use TCP: without it no peer is reached whose death must show, not even over shared memory."""
    chosen = os.environ.get("UCX_TLS", "")
    names = chosen.split(",")
    if chosen and not chosen.startswith("^") and not {"all", "tcp"} & set(names):
        os.environ["UCX_TLS"] = f"{chosen},tcp"
        logger.warning("added tcp to UCX_TLS, no peer is reached without it", extra={"ucx_tls": os.environ["UCX_TLS"]})
