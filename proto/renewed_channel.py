"""A channel that is opened anew when this program's certificate is: calls end on the connection on which they began."""

import asyncio
from collections.abc import Callable
from typing import Any, Self, cast

from twostep.core.certificates import CertificateFiles, Pem
from twostep.proto.rpc import Channel


def renewed_channel(open_one: Callable[[Pem], Channel], files: CertificateFiles) -> Channel:
    """Return what stubs and their owners take for a channel."""
    return cast(Channel, RenewedChannel(open_one, files))


class RenewedChannel:
    """As much of a channel as is used. A connection that was replaced twice is closed, with whatever still runs on it."""

    def __init__(self, open_one: Callable[[Pem], Channel], files: CertificateFiles) -> None:
        self._open_one = open_one
        self._files = files
        self._pem = files.current()
        self._channels = [open_one(self._pem)]
        self._closing: set[asyncio.Task[None]] = set()

    def unary_unary(self, *method: Any, **options: Any) -> "RenewedCall":
        return RenewedCall(self.current, lambda channel: channel.unary_unary(*method, **options))

    def unary_stream(self, *method: Any, **options: Any) -> "RenewedCall":
        return RenewedCall(self.current, lambda channel: channel.unary_stream(*method, **options))

    def stream_unary(self, *method: Any, **options: Any) -> "RenewedCall":
        return RenewedCall(self.current, lambda channel: channel.stream_unary(*method, **options))

    def current(self) -> Channel:
        """Return the connection on which to begin a call now."""
        pem = self._files.current()
        if pem is not self._pem:
            self._pem = pem
            self._channels.append(self._open_one(pem))
            for worn_out in self._channels[:-2]:
                self._close_in_background(worn_out)
            del self._channels[:-2]
        return self._channels[-1]

    async def close(self, grace: float | None = None) -> None:
        for channel in self._channels:
            await channel.close(grace)
        await asyncio.gather(*self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(None)

    def _close_in_background(self, channel: Channel) -> None:
        closing = asyncio.ensure_future(channel.close(None))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class RenewedCall:
    """One method of a stub."""

    def __init__(self, current: Callable[[], Channel], bind: Callable[[Channel], Any]) -> None:
        self._current = current
        self._bind = bind
        self._channel = current()
        self._call = bind(self._channel)

    def __call__(self, *request: Any, **options: Any) -> Any:
        channel = self._current()
        if channel is not self._channel:
            self._channel, self._call = channel, self._bind(channel)
        return self._call(*request, **options)
