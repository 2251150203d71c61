"""In which order requests are served: by what is left of their time, then by priority, which grows with age, then by arrival.

Pure, and asked anew for every step: a slack that was right when a request came is wrong when others have gone before it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter

from twostep.core.request import Request, Timing

SLACK_STEP_S = 0.05
"""Slacks that differ by less count as equal, lest priority never counts."""

Rank = tuple[bool, int, int, int, int]
"""Compares requests: the lower is served first."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request can say for itself. Times are the engine's clock's.

    A lower `priority` is served earlier; `born_at` is when the request came to its router. The first token should be there at
    `wanted_by` (infinite: no wish, or it is) and everything at `deadline`.
    """

    arrival: int
    priority: int = 0
    born_at: float = 0.0
    wanted_by: float = math.inf
    deadline: float = math.inf


def claim_of(request: Request, born_at: float, deadline: float, *, arrival: int, has_drawn: bool) -> Claim:
    level = request.level
    wanted_by = math.inf if has_drawn or level.ttft_s is None else born_at + level.ttft_s
    return Claim(arrival, level.priority, born_at, wanted_by, deadline)


@dataclass(frozen=True, slots=True)
class RankPolicy:
    """Slack beyond `urgent_s` is no hurry. A request gains one level of priority for every `aging_s` of its age."""

    urgent_s: float
    aging_s: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranks claims at one moment, by the measured time that a prompt token takes."""

    now: float
    prefill_token_s: float
    policy: RankPolicy

    def rank(self, claim: Claim, num_tokens: int) -> Rank:
        """Return where a request stands of which `num_tokens` are to be computed; who comes too late comes last.

        Who precedes new ones of the usual priority, 0, by its own priority or by its age, is more urgent than any of them while
        its deadline can be met, and slack decides only among those of one priority: else wishes could pass a request that has
        none, or has missed its own, for ever; and one that has grown old could pass a dearer one that has no wish.
        """
        slack_s = min(claim.wanted_by, claim.deadline) - self.now - num_tokens * self.prefill_token_s
        is_late, urgent_s = slack_s < 0, self.policy.urgent_s
        slack = int((urgent_s if is_late else min(slack_s, urgent_s)) / SLACK_STEP_S)
        priority = self.aged_priority(claim)
        if priority < 0 and not self.is_hopeless(claim, num_tokens):
            return False, 0, priority, slack, claim.arrival
        return is_late, slack, priority, slack, claim.arrival

    def aged_priority(self, claim: Claim) -> int:
        return claim.priority - int(max(0.0, self.now - claim.born_at) / self.policy.aging_s)

    def is_hopeless(self, claim: Claim, num_tokens: int) -> bool:
        """Return whether they cannot be computed by the request's deadline, though everything were for it from now on."""
        return self.now + num_tokens * self.prefill_token_s > claim.deadline

    def in_turns(self, waiting: Iterable[tuple[Request, Timing]], had: Mapping[str, int]) -> list[int]:
        """Return the places of requests that wait, in order of arrival, in the order in which they are to be served.

        Tenants are served by how many tokens they `had` and would have had; those with as many by their best request.
        """
        ranked = sorted(((self._rank_waiting(*one, arrival), one[0]) for arrival, one in enumerate(waiting)), key=itemgetter(0))
        tokens = Counter(had)
        order: list[tuple[int, Rank]] = []
        for known, request in ranked:
            order.append((tokens[request.level.tenant], known))
            tokens[request.level.tenant] += len(request.tokens)
        return [known[-1] for _, known in sorted(order)]

    def _rank_waiting(self, request: Request, timing: Timing, arrival: int) -> Rank:
        born_at, deadline = self.now - timing.age_s, self.now + timing.remaining_s
        claim = claim_of(request, born_at, deadline, arrival=arrival, has_drawn=bool(request.output_tokens))
        return self.rank(claim, len(request.tokens))
