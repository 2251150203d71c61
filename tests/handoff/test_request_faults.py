"""A request that fails alone inside an engine ends with its own error, counted, and both nodes serve on."""

import pytest

from twostep.core.errors import RequestFault
from twostep.engine.batch import Batch
from twostep.engine.runner import Collect, OnLayers, Ran, Runner
from twostep.tests.handoff.pair import running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes


class Failing:
    """A runner that gives request `bad` no sound logits from its output number `index` on."""

    def __init__(self, inner: Runner, index: int) -> None:
        self._inner = inner
        self._index = index

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
        drawn = self._inner.launch(batch, on_layers)().drawn
        fails = [chunk.request == "bad" and chunk.draw and chunk.draw.index >= self._index for chunk in batch.chunks]
        ran = Ran([RequestFault("NaN") if failed else each for failed, each in zip(fails, drawn, strict=True)])
        return lambda: ran


@pytest.mark.parametrize(("side", "index"), [("prefill", 0), ("decode", 1), ("decode", 3)])
async def test_a_request_whose_logits_are_no_numbers_ends_alone(side: str, index: int) -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        node = getattr(pair, side)
        node.parts.engine.runner = Failing(node.parts.engine.runner, index)
        bad, good = request("bad", 100), request("good", 100)
        reply = pair.router.prefill(bad, (await pair.router.grant(bad)).ticket)
        if side == "prefill":
            with pytest.raises(RequestFault):
                await reply
        else:
            await reply
        answer = pair.router.answer("bad")
        await answer.over.wait()
        assert isinstance(answer.error, RequestFault)
        assert not answer.error.retry_elsewhere
        assert answer.tokens == list(Solo(MODEL).answer(bad)[0][:index])
        assert (await pair.router.serve(good)).tokens == Solo(MODEL).answer(good)[0]
        assert node.parts.metrics.registry.get_sample_value("twostep_request_faults_total") == 1
        await pair.settle()
        pair.require_clean()
