"""The oracle: what one engine alone answers to a request."""

import time

from twostep.core.ids import Attempt
from twostep.core.request import Request, TokenEvent
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.fake_runner import FakeModel, FakeRunner


class Solo:
    """One engine with room for everything, one request at a time, without help from its prefix cache."""

    def __init__(self, model: FakeModel, *, kv_bytes: int = 4 << 20) -> None:
        self._model = model
        self._config = EngineConfig(dtype="float32", kv_bytes=kv_bytes, token_budget=4096, layer_group=model.num_layers)

    def answer(self, request: Request) -> tuple[tuple[int, ...], str]:
        """Return the drawn tokens and the finish reason."""
        engine = Engine(FakeRunner(self._model, self._config), self._config, clock=time.monotonic)
        engine.reserve(request, growth_tokens=1)
        engine.start(request.id, attempt=Attempt(1))
        events: list[TokenEvent] = []
        while (result := engine.step()) is not None:
            events += result.events
        assert events[-1].finish is not None
        return tuple(event.token for event in events), str(events[-1].finish)
