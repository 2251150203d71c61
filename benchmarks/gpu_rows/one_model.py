"""A model with random weights on the stage's device, behind an engine that is driven step by step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import torch

from twostep.benchmarks.gpu_rows.stage import BLOCK_TOKENS, Config, Stage, seeded
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import Attempt, RequestId
from twostep.core.kv_layout import KVLayout
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine, StepResult
from twostep.engine.gpu.build import Identity, fit_runner
from twostep.engine.gpu.decoder import Layer, covered
from twostep.engine.models.decoder import Decoder
from twostep.engine.models.registry import build_model
from twostep.engine.weights import DTYPES

ATTEMPT = Attempt(1)
SCALE = 0.02
"""Of random weights: the activations of a deep model stay numbers."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Some steps of a decode loop, in milliseconds each; `gap_share` is how much of that the device had nothing to do."""

    step_ms: float
    gap_share: float


class OneModel:
    """An engine over `model`, whose weights lie on the stage's device and are of this type."""

    def __init__(self, stage: Stage, model: Decoder, *, dtype: str = "bfloat16") -> None:
        sizes = stage.sizes
        self.stage, self.model = stage, model
        growth = sizes.num_warm_up_steps + sizes.num_steps + BLOCK_TOKENS
        num_tokens = (max(sizes.batches) + 1) * (sizes.context + growth) + max(sizes.prompts) + growth
        self._config = EngineConfig(
            dtype=dtype,  # type: ignore[arg-type]
            block_tokens=BLOCK_TOKENS,
            kv_bytes=num_tokens // BLOCK_TOKENS * _layout(model, dtype).block_bytes,
            max_model_tokens=max(*sizes.prompts, sizes.context) + growth,
            max_batch=max(sizes.batches),
            token_budget=max(sizes.prompts),
        )
        available = stage.device.free_bytes()
        self.runner = fit_runner(self.model, self._config, stage.device, available, self._identify)
        fill_randomly(self.runner.kv.words.view(DTYPES[dtype]), stage)
        stage.device.finish()
        self.engine = Engine(self.runner, self._config, clock=time.perf_counter)
        self._growth = growth
        self._chance = Random(7)
        self._num_asked = 0

    @property
    def num_layer_weights(self) -> int:
        """Return how many weights each token is multiplied with in all layers."""
        return sum(parameter.numel() for layer in self.model.layers for parameter in layer.parameters() if parameter.dim() > 1)

    @property
    def step_bytes(self) -> int:
        """Return how many bytes of weights a decode step reads: all but rows of the embedding that is not the head, too."""
        head = self.model.embed_tokens if self.model.lm_head is None else self.model.lm_head
        return (self.num_layer_weights + head.weight.numel()) * head.weight.itemsize

    def context_bytes(self, num_tokens: int) -> int:
        """Return how many bytes of KV a decode after so many tokens reads."""
        return num_tokens * self.runner.kv.layout.block_bytes // BLOCK_TOKENS

    def prefill_flops(self, num_tokens: int) -> float:
        """Return what a prompt takes: the products of all layers, and causal attention."""
        layer = self.model.layers[0]
        assert isinstance(layer, Layer)
        shape = layer.self_attn.shape
        attended = 2 * num_tokens**2 * shape.num_heads * shape.head_dim * self.model.facts.num_layers
        return 2.0 * num_tokens * self.num_layer_weights + attended

    @contextmanager
    def without_graphs(self) -> Iterator[None]:
        """Compute every step as it comes."""
        graphed, self.engine.runner = self.engine.runner, self.runner.without_graphs()
        try:
            yield
        finally:
            self.engine.runner = graphed

    def decode(self, batch: int) -> Steps:
        """Decode so many requests at once, whose prompts are as long as the context, from KV that is there."""
        requests = [self._request(self.stage.sizes.context, self._growth) for _ in range(batch)]
        for request in requests:
            self.engine.reserve(request, growth_tokens=self._growth)
            self.engine.attach(request.id, 1, attempt=ATTEMPT)
        for _ in range(self.stage.sizes.num_warm_up_steps):
            self._step()
        started, gap_s = time.perf_counter(), 0.0
        for _ in range(self.stage.sizes.num_steps):
            gap_s += self._step().record.gap_s or 0.0
        took_s = time.perf_counter() - started
        for request in requests:
            self.engine.release(request.id)
        self._run_out()
        return Steps(1e3 * took_s / self.stage.sizes.num_steps, gap_s / took_s)

    def prefill_s(self, num_tokens: int) -> float:
        """Compute a prompt to its first token."""
        request = self._request(num_tokens, 1)
        self.engine.reserve(request, growth_tokens=1)
        self.stage.device.finish()
        started = time.perf_counter()
        self.engine.start(request.id, attempt=ATTEMPT)
        self._run_out()
        took_s = time.perf_counter() - started
        self.engine.release(request.id)
        return took_s

    def answer(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Return what is drawn after each prompt, greedily, all at once."""
        requests = [self._request(len(prompt), num_tokens, prompt) for prompt in prompts]
        answers: dict[RequestId, list[int]] = {request.id: [] for request in requests}
        for request in requests:
            self.engine.reserve(request, growth_tokens=num_tokens)
            self.engine.start(request.id, attempt=ATTEMPT)
        while (result := self.engine.step()) is not None:
            for event in result.events:
                answers[event.request].append(event.token)
        for request in requests:
            self.engine.release(request.id)
        return [answers[request.id] for request in requests]

    def mix(self, num_steps: int, live: int) -> None:
        """Run so many steps of requests of all sizes, which come as others go."""
        num_live = 0
        for _ in range(num_steps):
            while num_live < live:
                prompt, answer = (
                    self._chance.randint(1, self.stage.sizes.context // 2),
                    self._chance.randint(2, 2 * self._growth),
                )
                request = self._request(prompt, answer, temperature=self._chance.choice([0.0, 0.8]))
                self.engine.reserve(request, growth_tokens=self._growth)
                self.engine.start(request.id, attempt=ATTEMPT)
                num_live += 1
            for event in self._step().events:
                if event.finish:
                    self.engine.release(event.request)
                    num_live -= 1
        for name in self.engine.requests():
            self.engine.release(name)
        self._run_out()

    def _step(self) -> StepResult:
        result = self.engine.step()
        if result is None or result.faults:
            raise RuntimeError(f"a step brought {result.faults[0][1].message if result else 'nothing'}")
        return result

    def _run_out(self) -> None:
        while self.engine.step() is not None:
            pass

    def _request(
        self, num_tokens: int, max_tokens: int, prompt: list[int] | None = None, *, temperature: float = 0.0
    ) -> Request:
        self._num_asked += 1
        drawn = prompt or self._chance.choices(range(self.model.facts.vocab_size), k=num_tokens)
        sampling = SamplingParams(seed=self._num_asked, temperature=temperature, top_p=0.95)
        return Request(RequestId(f"r{self._num_asked}"), tuple(drawn), sampling, StopRules(max_tokens))

    def _identify(self, num_blocks: int) -> Identity:
        facts, layout = self.model.facts, _layout(self.model, self._config.dtype)
        geometry = Geometry(
            block_tokens=BLOCK_TOKENS,
            max_model_tokens=self._config.max_model_tokens or num_blocks * BLOCK_TOKENS,
            layer_group=self._config.layer_group,
            first_head=0,
            end_head=facts.num_kv_heads,
        )
        return Identity(_fingerprint(self.model, layout.layout_id, self._config.dtype), geometry)


def random_decoder(config: Config, place: torch.device, dtype: str = "bfloat16") -> Decoder:
    """Return a model of this shape, its weights drawn at `place`, the same in each run."""
    with torch.device("meta"):
        decoder = covered(build_model(config))
    assert decoder
    decoder.to(DTYPES[dtype]).to_empty(device=place)
    chance = seeded(1, place)
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad = False
        parameter.normal_(1.0 if "norm" in name else 0.0, SCALE, generator=chance)
    return decoder


def _layout(model: Decoder, dtype: str) -> KVLayout:
    facts = model.facts
    return KVLayout(facts.num_layers, facts.num_kv_heads, facts.head_dim, BLOCK_TOKENS, dtype)


def fill_randomly(pool: torch.Tensor, stage: Stage) -> None:
    """Put numbers into the KV cache: a context of zeros would be read faster than any real one."""
    for layer in pool:
        layer.normal_(generator=seeded(2, stage.device.place))


def _fingerprint(model: Decoder, layout: str, dtype: str) -> Fingerprint:
    facts = model.facts
    return Fingerprint(
        model="random",
        weights="random",
        tokenizer="none",
        layout=layout,
        dtype=dtype,
        num_layers=facts.num_layers,
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        vocab_size=facts.vocab_size,
        rope=facts.rope,
        sampler="ours",
    )
