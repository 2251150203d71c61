"""Shares prompt tokens out between tenants: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). Pure.

A tenant's turn is a quantum of tokens, over as many steps as it takes. Who has nothing to compute is passed over: what it
leaves is everybody's, and a lone tenant gets everything.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Turns:
    """Tenants in the order of their turns, and what is left of turns that have begun."""

    ring: tuple[str, ...] = ()
    credits: Mapping[str, int] = field(default_factory=dict)


NO_TURNS = Turns()


@dataclass(frozen=True, slots=True)
class Shares:
    """How many tokens each tenant may compute in a step, and whose turn it is afterwards."""

    tokens: Mapping[str, int]
    turns: Turns


def share_out(turns: Turns, wanted: Mapping[str, int], present: Collection[str], budget: int, quantum: int) -> Shares:
    """Return who computes how many of `budget` tokens; `wanted` are the tokens that each tenant has to compute.

    One that is `present` and wants nothing, as its requests have lost their blocks for now, keeps its place and its credit.
    """
    ring = [tenant for tenant in turns.ring if tenant in present or tenant in wanted]
    ring += [tenant for tenant in wanted if tenant not in ring]
    credit = {tenant: tokens for tenant, tokens in turns.credits.items() if tenant in ring}
    left = {tenant: tokens for tenant, tokens in wanted.items() if tokens}
    shares: Counter[str] = Counter()
    while budget and left:
        tenant = next(one for one in ring if one in left)
        allowed = credit.pop(tenant, quantum)
        granted = min(allowed, budget, left[tenant])
        shares[tenant] += granted
        left[tenant] -= granted
        budget -= granted
        is_served = not left[tenant]
        if is_served:
            del left[tenant]
        if is_served or granted == allowed:
            ring.remove(tenant)
            ring.append(tenant)
        else:
            credit[tenant] = allowed - granted
    return Shares(shares, Turns(tuple(ring), credit))
