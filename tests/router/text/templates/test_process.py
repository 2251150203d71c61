"""Templates run in processes of their own: whatever they do ends in bounded time and memory, and the next request is served."""

import asyncio
import sys
import time

import pytest

from twostep.core.errors import ConfigError, InvalidRequest
from twostep.router.text.templates.child import TemplateProcess
from twostep.router.text.templates.conversation import Conversation
from twostep.router.text.templates.folder import TemplateSet
from twostep.router.text.templates.frames import pack
from twostep.router.text.templates.renderer import NUM_PROCESSES, ProcessRenderer
from twostep.tests.processes import children, is_gone
from twostep.tests.router.cluster import until

pytestmark = pytest.mark.processes

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MISDEEDS = (
    "{% set does = messages[0].content %}"
    "{% if does == 'loop' %}" + LOOP + "{% endif %}"
    "{% if does == 'one expression' %}{{ range(99999) | map('string') | join('y' * 99999) | length }}{% endif %}"
    "{% if does == 'memory' %}{{ ('x' * 9999999999) | length }}{% endif %}"
    "{% if does == 'memory in steps' %}{% set ns = namespace(x='x') %}"
    "{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% endif %}"
    "{% if does == 'surrogate' %}{{ '\\ud800' }}{% endif %}"
    "{% if does == 'number' %}{{ '{:9999999999}'.format(1) }}{% endif %}"
    "said {{ does }}"
)


def renderer(source: str = MISDEEDS, *, processor_time_s: float = 0.5) -> ProcessRenderer:
    return ProcessRenderer(TemplateSet({"default": source}, {}, "test"), processor_time_s=processor_time_s)


def asking(text: str) -> Conversation:
    return Conversation([{"role": "user", "content": text}])


async def test_what_goes_in_comes_out_as_it_is() -> None:
    async with renderer() as templates:
        text = "é\u2028\n\x00😀" * 200_000
        assert await templates.render(asking(text)) == f"said {text}"


@pytest.mark.parametrize(
    ("misdeed", "message"),
    [
        ("loop", "it did not end in 0.5 s of processor time"),
        ("memory", "the chat template needs more than 512 MiB"),
        ("memory in steps", "the chat template needs more than 512 MiB"),
        ("one expression", "the chat template needs more than 512 MiB"),
        ("number", "the chat template needs more than 512 MiB"),
        ("surrogate", "the chat template made text that is not Unicode"),
    ],
)
async def test_a_misdeed_ends_in_an_error_and_the_next_request_is_served(misdeed: str, message: str) -> None:
    async with renderer(processor_time_s=0.5 if misdeed == "loop" else 10.0) as templates:
        started = time.monotonic()
        with pytest.raises(InvalidRequest, match=message) as raised:
            await templates.render(asking(misdeed))
        assert raised.value.param == "messages"
        assert time.monotonic() - started < 10
        assert await templates.render(asking("hi")) == "said hi"


async def test_a_looping_template_does_not_delay_another_request_or_the_event_loop() -> None:
    async with renderer() as templates:
        looping = asyncio.create_task(templates.render(asking("loop")))
        assert await templates.render(asking("hi")) == "said hi"
        assert not looping.done()
        with pytest.raises(InvalidRequest):
            await looping


async def test_requests_behind_looping_ones_are_served_in_the_end() -> None:
    async with renderer() as templates:
        asked = [asking("loop")] * NUM_PROCESSES + [asking(str(number)) for number in range(20)]
        answers = await asyncio.gather(*map(templates.render, asked), return_exceptions=True)
        assert answers[NUM_PROCESSES:] == [f"said {number}" for number in range(20)]
        assert [type(answer) for answer in answers[:NUM_PROCESSES]] == [InvalidRequest] * NUM_PROCESSES


async def test_a_client_that_leaves_spoils_nobody_elses_answer() -> None:
    async with renderer() as templates:
        left = [asyncio.create_task(templates.render(asking(f"left {number}"))) for number in range(10)]
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        assert await templates.render(asking("hi")) == "said hi"


async def test_a_process_whose_answer_nobody_waits_for_any_more_is_ended() -> None:
    process = await TemplateProcess.start(TemplateSet({"default": MISDEEDS}, {}, "test"), processor_time_s=10.0)
    asked = asyncio.create_task(process.ask(pack({"messages": asking("hi").messages})))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert process._process.returncode == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "test: the chat template 'default' does not compile: line 1"),
        (LOOP, "test: the chat template cannot be used: it did not end in 0.5 s of processor time"),
    ],
)
async def test_a_template_that_cannot_be_used_is_found_at_the_start(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        async with renderer(source):
            pytest.fail("it has started")


async def test_a_number_that_cannot_be_written_down_is_refused() -> None:
    async with renderer() as templates:
        with pytest.raises(InvalidRequest, match="the conversation cannot be rendered: number out of range"):
            await templates.render(Conversation([], settings={"x": 10**5000}))


ROUTER = """
import asyncio
from twostep.tests.router.text.templates.test_process import asking, renderer

async def main():
    async with renderer(processor_time_s=1.0) as templates:
        print("started", flush=True)
        await templates.render(asking("loop"))

asyncio.run(main())
"""


async def test_no_process_outlives_its_router_not_even_in_a_loop() -> None:
    router = await asyncio.create_subprocess_exec(sys.executable, "-c", ROUTER, stdout=asyncio.subprocess.PIPE)
    assert router.stdout
    assert await router.stdout.readline() == b"started\n"
    [child] = await asyncio.to_thread(children, router.pid)
    router.kill()
    await router.wait()

    async def has_ended() -> bool:
        return await asyncio.to_thread(is_gone, child)

    await until(has_ended)
