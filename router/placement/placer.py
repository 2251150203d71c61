"""Places this router's requests: asks the fleet and the index, decides, and learns from what came of it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from twostep.core.clock import Clock
from twostep.core.ids import NodeRef
from twostep.core.request import Request
from twostep.router.admission.demand import Demand
from twostep.router.bill import Bill
from twostep.router.config import RouterConfig
from twostep.router.metrics import Metrics
from twostep.router.placement.choose import Avoid, Expected, Placement, choose
from twostep.router.placement.experience import Experience
from twostep.router.placement.fleet import Fleet
from twostep.router.placement.node_view import Typical
from twostep.router.placement.prefix_accuracy import PrefixAccuracy
from twostep.router.placement.prefix_index import PrefixIndex
from twostep.router.placement.prompt_hashes import PromptHashes
from twostep.router.placement.sessions import Sessions

log = logging.getLogger(__name__)

TELLING_BEATS = 3
"""After so many heartbeats a node has told what came of a prompt that was sent there."""


@dataclass(frozen=True, slots=True)
class Errand:
    """A request as placement sees it; its prompt's blocks are named once, for all attempts."""

    request: Request
    prompt: PromptHashes
    session: str = ""

    @classmethod
    def of(cls, request: Request, session: str = "") -> "Errand":
        return cls(request, PromptHashes(request.prompt, request.cache_salt), session)


@dataclass(frozen=True, slots=True)
class Found:
    """What a request found in the prefix caches: the prefill node's, None when none served or told, and the decode node's."""

    prefill_tokens: int | None
    decode_tokens: int


class Placer:
    """Whatever it knows can be learnt anew: another router, or this one after a restart, places by the nodes' own words."""

    def __init__(
        self,
        fleet: Fleet,
        prefixes: PrefixIndex,
        typical: Callable[[], Typical],
        config: RouterConfig,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self.accuracy = PrefixAccuracy()
        self._fleet = fleet
        self._prefixes = prefixes
        self._typical = typical
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._experience = Experience()
        self._sessions = Sessions()
        self._mismatched: frozenset[tuple[NodeRef, NodeRef]] = frozenset()

    def place(self, errand: Errand, *, num_accepted: int, keep: NodeRef | None, avoid: Avoid) -> Placement:
        """Choose nodes for a request of which `num_accepted` output tokens are there already. Raises NoReadyNode."""
        now = self._clock()
        if self._mismatched:
            avoid = replace(avoid, mismatched=avoid.mismatched | self._mismatched)
        candidates = self._fleet.candidates(
            self._prefixes.match(errand.prompt, now=now),
            may_be_alone=self._config.allow_decode_alone,
            keep=keep,
            avoid=avoid,
            session=self._sessions.nodes(errand.request.level.tenant, errand.session),
        )
        placement = choose(candidates, self._expected(errand.request, num_accepted), now=now, keep=keep, avoid=avoid)
        self._note_sent(errand, placement, now)
        return placement

    def forbid(self, prefill: NodeRef, decode: NodeRef) -> None:
        """Never form this pair again."""
        living = {(p, d) for p, d in self._mismatched if p in self._prefixes and d in self._prefixes}
        self._mismatched = frozenset(living | {(prefill, decode)})

    def demand(self, request: Request) -> Demand:
        """Return what a request is expected to ask of the cluster, wherever it will be placed."""
        num_prompt, seen = len(request.prompt), self._experience
        compute_s = self._typical().curve.prefill_s(0, num_prompt) * seen.uncached_share
        return Demand(compute_s, num_prompt + round(min(seen.output_tokens, request.stop.max_tokens)))

    def learn(self, placement: Placement, found: Found, bill: Bill, num_tokens: int) -> None:
        """Take up how a request went that ended well, with `num_tokens` output tokens."""
        self._experience.learn(bill, max(1, placement.num_tokens), num_tokens)
        if placement.prefill and found.prefill_tokens is not None:
            self._compare(placement.prefill.ref, placement.cached_tokens, found.prefill_tokens)
        self._compare(placement.decode.ref, placement.decode_cached_tokens, found.decode_tokens)

    def _expected(self, request: Request, num_accepted: int) -> Expected:
        seen, level = self._experience, request.level
        return Expected(
            num_tokens=len(request.prompt) + num_accepted,
            output_tokens=min(seen.output_tokens, request.stop.max_tokens - num_accepted),
            pair_overhead_s=seen.pair_overhead_s,
            alone_overhead_s=seen.alone_overhead_s,
            spread_s=self._config.spread_s if level.ttft_s is None else min(level.ttft_s, self._config.spread_s),
        )

    def _note_sent(self, errand: Errand, placement: Placement, now: float) -> None:
        ends_at = now + (placement.cost.ttft if placement.cost else 0.0)
        nodes = [node for node in (placement.prefill, placement.decode) if node]
        for node in nodes:
            tells = self._prefixes.tells(node.ref)
            lasts_s = TELLING_BEATS * self._config.heartbeat_s if tells else self._config.prefix_memory_s
            self._prefixes.note_sent(node.ref, errand.prompt, until=ends_at + lasts_s)
        self._sessions.note(errand.request.level.tenant, errand.session, frozenset(node.ref for node in nodes))

    def _compare(self, node: NodeRef, expected: int, found: int) -> None:
        self._metrics.prefix_tokens.labels("expected").inc(expected)
        self._metrics.prefix_tokens.labels("found").inc(found)
        self._metrics.prefix_tokens.labels("missed").inc(max(0, expected - found))
        self._metrics.prefix_tokens.labels("unexpected").inc(max(0, found - expected))
        turned = self.accuracy.note(node, expected, found)
        if turned is not None:
            extra = {"node": str(node), "share_wrong": round(self.accuracy.share_wrong(node), 3)}
            if turned:
                self._metrics.prefix_alarms.labels(node.id).inc()
                log.warning("a node's prefix cache is not what it is taken for", extra=extra)
            else:
                log.info("a node's prefix cache is what it is taken for again", extra=extra)
