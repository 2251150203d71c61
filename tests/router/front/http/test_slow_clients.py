"""Clients that send slowly, read nothing, or send without end: each is ended in time, and nobody else notices."""

import asyncio
from pathlib import Path

import pytest

from twostep.tests.router.cluster import cluster, until
from twostep.tests.router.front.http.raw_http import PATH, chat_request, connection, error_of, post

pytestmark = pytest.mark.processes

SLOW_HEAD = b"GET /health HTTP/1.1\r\nhost: " + b"x" * 10_000
SLOW_BODY = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 10000\r\n\r\n".encode()
SLOW_CHUNKS = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("at_once", "slowly"),
    [(b"", SLOW_HEAD), (SLOW_BODY, b" " * 10_000), (SLOW_CHUNKS, b"1\r\n \r\n" * 1000)],
    ids=["headers", "body", "chunks"],
)
async def test_a_request_that_never_ends_is_timed_out(tmp_path: Path, at_once: bytes, slowly: bytes) -> None:
    async with cluster(tmp_path, client_send_s=0.5) as running, connection(running) as slow:
        await slow.send(at_once)
        reply = await slow.dribble(slowly, pause_s=0.02) + await slow.rest()
        status, error = error_of(reply)
        assert (status, error["code"]) == (408, "request_timeout")
        assert error["message"] == "the request was not there after 0.5 s"
        assert await running.metric("twostep_router_connections_ended_total", why="request_timeout") == 1


async def test_a_client_that_says_nothing_is_hung_up_on(tmp_path: Path) -> None:
    async with cluster(tmp_path, client_send_s=0.2) as running, connection(running) as silent:
        assert error_of(await silent.rest())[0] == 408


async def test_a_body_sent_after_its_refusal_is_not_taken_for_ever(tmp_path: Path) -> None:
    async with cluster(tmp_path, client_send_s=0.3, max_body_bytes=1000) as running, connection(running) as refused:
        await refused.send(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000000\r\n\r\n".encode())
        [(status, _, _)] = await refused.replies(1)
        assert status == 413
        assert await refused.dribble(b"x" * 10_000, pause_s=0.02) == b""


async def test_a_slow_request_behind_another_does_not_spoil_the_reply_of_the_first(tmp_path: Path) -> None:
    async with cluster(tmp_path, client_send_s=0.3) as running, connection(running) as hasty:
        await hasty.send(chat_request() + b"GET /health HT")
        [(status, _, body)] = await hasty.replies(1)
        assert status == 200
        assert b"Hello, world" in body
        assert error_of(await hasty.rest())[0] == 408


async def test_a_kept_connection_may_be_silent_between_requests(tmp_path: Path) -> None:
    async with cluster(tmp_path, client_send_s=0.3) as running, connection(running) as kept:
        for _ in range(3):
            await kept.send(chat_request())
            assert [status for status, _, _ in await kept.replies(1)] == [200]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await kept.reader.read(1)


async def test_a_kept_connection_on_which_nothing_more_is_asked_is_closed(tmp_path: Path) -> None:
    async with cluster(tmp_path, client_idle_s=1) as running, connection(running) as kept:
        await kept.send(chat_request())
        assert [status for status, _, _ in await kept.replies(1)] == [200]
        assert await kept.rest() == b""


async def test_replies_that_nobody_reads_are_ended_with_their_connection(tmp_path: Path) -> None:
    async with cluster(tmp_path, client_stall_s=0.5) as running, connection(running, receive_buffer=2048) as deaf:
        sending = asyncio.create_task(deaf.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 20_000))

        async def is_ended() -> bool:
            return await running.metric("twostep_router_connections_ended_total", why="unread") == 1

        await until(is_ended)
        await sending


async def test_a_stream_that_nobody_reads_ends_alone(tmp_path: Path) -> None:
    async with cluster(tmp_path, client_stall_s=0.5, max_buffered_tokens=50) as running:
        quick = running.d.answer
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        async with connection(running, receive_buffer=2048) as deaf:
            await deaf.send(chat_request(stream=True, max_tokens=480))
            await running.p.prefilling.wait()
            running.d.answer = quick  # type: ignore[method-assign]
            running.d.emit(running.d.seen.reserves[0].request.id, 1, [700] * 400)
            replies = await asyncio.gather(*(running.chat() for _ in range(20)))
            assert {reply.status_code for reply in replies} == {200}
            await running.d.cancel_seen.wait()

            async def is_free() -> bool:
                return await running.metric("twostep_router_in_flight_requests") == 0

            await until(is_free)


async def test_a_long_silence_is_broken_by_comments(tmp_path: Path) -> None:
    async with cluster(tmp_path, keep_alive_s=0.1) as running:
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        async with connection(running) as waiting:
            await waiting.send(chat_request("connection: close\r\n", stream=True))
            await running.p.prefilling.wait()
            head = await waiting.reader.readuntil(b": keep-alive\n\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"content-type: text/event-stream; charset=utf-8\r\n" in head
            await waiting.reader.readuntil(b": keep-alive\n\n")
            request = running.d.seen.reserves[0].request.id
            running.d.emit(request, 1, b"late")
            running.d.finish(request, 1, num_tokens=4)
            assert b"data: [DONE]\n\n" in await waiting.rest()


async def test_a_failure_after_a_comment_is_an_event_of_the_stream(tmp_path: Path) -> None:
    async with cluster(tmp_path, keep_alive_s=0.1, request_timeout_s=0.5) as running:
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        reply = await running.chat(stream=True)
        *comments, failure, end = reply.text.split("\n\n")
        assert set(comments) == {": keep-alive"}
        assert '"code":"deadline_exceeded"' in failure
        assert end == ""


async def test_bodies_that_are_still_being_sent_are_bounded_together(tmp_path: Path) -> None:
    async with cluster(tmp_path, max_body_bytes=1000, max_held_body_bytes=2500) as running:
        half = post(b" " * 1000)[:-10]
        async with connection(running) as one, connection(running) as two, connection(running) as three:
            await one.send(half)
            await two.send(half)

            async def is_refused() -> bool:
                await three.send(half)
                return (await three.replies(1))[0][0] == 429

            await until(is_refused)
        assert (await running.chat()).status_code == 200


@pytest.mark.parametrize("is_reset", [False, True], ids=["hung up", "reset"])
async def test_a_client_that_leaves_is_noticed_though_its_next_request_has_come(tmp_path: Path, is_reset: bool) -> None:
    async with cluster(tmp_path) as running:
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        async with connection(running) as hasty:
            await hasty.send(chat_request() + chat_request())
            await running.p.prefilling.wait()
            if is_reset:
                hasty.reset()
        await running.d.cancel_seen.wait()
        assert len(running.d.seen.reserves) == 1


async def test_garbage_behind_a_request_does_not_get_into_its_stream(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, connection(running) as hasty:
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        await hasty.send(chat_request(stream=True))
        await running.p.prefilling.wait()
        running.d.emit(running.d.seen.reserves[0].request.id, 1, b"Hello")
        received = await hasty.reader.readuntil(b'"content":"o"')
        await hasty.send(chat_request() + b"\x00\x01\x02\r\n\r\n")
        assert b"HTTP/1.1" not in await hasty.rest()
        assert received.startswith(b"HTTP/1.1 200 ")
