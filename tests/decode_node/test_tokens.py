import asyncio

from twostep.core.bill import DecodeBill
from twostep.core.ids import Attempt, RequestId, RouterId
from twostep.core.request import FinishReason, TokenEvent
from twostep.decode_node.tokens import Ended, TokenBatch, TokenStreams

R1, R2 = RouterId("r1"), RouterId("r2")
A = RequestId("a")
BILL = DecodeBill(0, 0, 0, 0, 0, 0, 0, 0)


def token(index: int) -> TokenEvent:
    return TokenEvent(A, 1, index, 100 + index)


def ended() -> Ended:
    return Ended(A, Attempt(1), BILL, 1, FinishReason.STOP)


async def test_what_was_emitted_before_the_reader_woke_comes_in_one_batch() -> None:
    streams = TokenStreams()
    reader = streams.read(R1)
    reading = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    streams.emit(R1, token(0))
    streams.emit(R1, token(1))
    streams.end(R1, ended())
    assert await reading == TokenBatch((token(0), token(1)), (ended(),))


async def test_tokens_wait_for_a_router_that_is_not_there_yet() -> None:
    streams = TokenStreams()
    streams.emit(R1, token(0))
    assert streams.backlog(R1) == 1
    assert await anext(streams.read(R1)) == TokenBatch((token(0),), ())
    assert streams.backlog(R1) == 0


async def test_each_router_reads_its_own_requests() -> None:
    streams = TokenStreams()
    streams.emit(R1, token(0))
    streams.emit(R2, token(1))
    assert await anext(streams.read(R2)) == TokenBatch((token(1),), ())
    assert await anext(streams.read(R1)) == TokenBatch((token(0),), ())


async def test_a_newer_reader_of_the_same_router_takes_over() -> None:
    streams = TokenStreams()
    older = asyncio.ensure_future(collect(streams, R1))
    await asyncio.sleep(0)
    newer = asyncio.ensure_future(collect(streams, R1))
    await asyncio.sleep(0)
    streams.emit(R1, token(0))
    streams.close()
    assert await older == []
    assert await newer == [TokenBatch((token(0),), ())]


async def test_a_closed_node_lets_its_readers_finish_what_is_there() -> None:
    streams = TokenStreams()
    streams.emit(R1, token(0))
    streams.close()
    assert await collect(streams, R1) == [TokenBatch((token(0),), ())]


async def test_a_router_that_is_gone_is_forgotten_with_its_stream() -> None:
    streams = TokenStreams()
    reading = asyncio.ensure_future(collect(streams, R1))
    await asyncio.sleep(0)
    streams.forget(R1)
    assert await reading == []
    assert streams.backlog(R1) == 0


async def test_a_reader_that_leaves_with_everything_read_leaves_nothing_behind() -> None:
    streams = TokenStreams()
    reader = streams.read(R1)
    streams.emit(R1, token(0))
    await anext(reader)
    await reader.aclose()
    assert streams._outboxes == {}


async def collect(streams: TokenStreams, router: RouterId) -> list[TokenBatch]:
    return [batch async for batch in streams.read(router)]
