"""One request at a time through prefill and decode."""

from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.decode_node.config import DecodeNodeConfig
from twostep.engine.fake_runner import FakeModel
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.tests.handoff.pair import engine_config, running_pair
from twostep.tests.handoff.solo import Solo

MODEL = FakeModel()
PREFILL = PrefillNodeConfig(engine=engine_config(blocks=64, model=MODEL))
DECODE = DecodeNodeConfig(engine=engine_config(blocks=64, model=MODEL), landing_bytes=1 << 20)


def request(name: str, num_tokens: int, *, max_tokens: int = 5) -> Request:
    prompt = tuple((7 * i + num_tokens) % MODEL.vocab_size for i in range(num_tokens))
    return Request(RequestId(name), prompt, SamplingParams(seed=1, temperature=0.0), StopRules(max_tokens=max_tokens))


async def test_prefill_and_decode_answer_as_one_engine_does() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        served = await pair.router.serve(request("a", 100))
        assert (served.tokens, served.finish_reason) == Solo(MODEL).answer(request("a", 100))
        await pair.settle()
        pair.require_clean()
