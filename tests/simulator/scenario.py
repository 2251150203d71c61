"""Draws a whole run from a seed: the cluster, the requests, and everything that will go wrong."""

import random
from dataclasses import dataclass, replace

from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.decode_node.config import DecodeNodeConfig
from twostep.node.config import Timers
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.tests.simulator.faults import (
    CALL_FATES,
    CALLED,
    CALLER,
    WRITE_FATES,
    Act,
    Fate,
    Fault,
    MessageFault,
    NodeFault,
    When,
)
from twostep.tests.simulator.model import MAX_TOKENS, MODEL, SHORT, engine_config, expected

TIMERS = Timers(
    lease_s=3.0,
    progress_s=2.0,
    retry_s=1.0,
    call_s=0.6,
    handshake_s=1.5,
    handshake_retry_s=0.3,
    landing_cooldown_s=4.0,
    stall_s=5.0,
    drain_s=3.0,
    bypass_s=1.0,
    tick_s=0.3,
)
MAX_LENGTH = 6 * 32
"""Prompt and answer of every request fit the smallest decode node."""
LENGTHS = (5, 31, 32, 33, 64, 65, 96, 100, 129, 160)
METHODS = {
    "Reserve": 3,
    "Prefill": 3,
    "Done": 5,
    "Failed": 2,
    "Abort": 2,
    "Landed": 3,
    "Credit": 3,
    "Progress": 2,
    "Heartbeat": 2,
    "Tokens": 2,
    "Cancel": 2,
    "Peers": 1,
    "Hello": 1,
    "Probe": 1,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One client: what it asks, of which router, when, and how long it waits. `leaves_s`: it leaves after so long."""

    request: Request
    router: str
    at_s: float
    timeout_s: float
    leaves_s: float | None = None
    enough: int | None = None
    """It wants no more after so many tokens, as with a stop string."""

    def __str__(self) -> str:
        request, more = self.request, ""
        if self.leaves_s is not None:
            more += f", leaves after {self.leaves_s:.3f} s"
        if self.enough is not None:
            more += f", wants {self.enough} at most"
        return (
            f"{request.id} asks {self.router} at {self.at_s:.3f} s: {len(request.prompt)} tokens, "
            f"at most {request.stop.max_tokens}, within {self.timeout_s:g} s{more}"
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    routers: tuple[str, ...]
    prefill: dict[str, PrefillNodeConfig]
    decode: dict[str, DecodeNodeConfig]
    asks: tuple[Ask, ...]
    faults: tuple[Fault, ...]
    allow_decode_alone: bool = False
    sliced: float = 0.0
    """How many turns of engines and receivers are left in their middle."""

    def describe(self) -> list[str]:
        """Return the run as lines for people."""
        lines = [
            f"seed {self.seed}: routers {', '.join(self.routers)}" + (", D may serve alone" if self.allow_decode_alone else "")
        ]
        for name, config in self.prefill.items():
            engine = config.engine
            blocks = engine.kv_bytes // (engine.block_tokens * 16)
            lines.append(
                f"  {name}: {blocks} blocks of {engine.block_tokens}, budget {engine.token_budget}, "
                f"groups of {engine.layer_group} layers, one write below {config.one_write_tokens} tokens"
            )
        for name, decode in self.decode.items():
            blocks = decode.engine.kv_bytes // (decode.engine.block_tokens * 16)
            lines.append(
                f"  {name}: {blocks} blocks of {decode.engine.block_tokens}, landing {decode.landing_bytes} bytes, "
                f"{decode.landing_share:g} of it for one"
            )
        lines += [f"  {ask}" for ask in self.asks]
        lines += [f"  {fault}" for fault in self.faults]
        return lines


def draw(seed: int) -> Scenario:
    chance = random.Random(f"scenario/{seed}")
    num_routers = 1 if chance.random() < 0.7 else 2
    routers = tuple(f"R{number}" for number in range(1, num_routers + 1))
    prefill = {f"P{number}": _prefill(chance) for number in range(1, chance.choice((1, 1, 2, 2, 2, 3)) + 1)}
    decode = {f"D{number}": _decode(chance) for number in range(1, chance.choice((1, 1, 1, 2, 2, 3)) + 1)}
    is_crowd = chance.random() < 0.05
    num_asks = 6 if is_crowd else chance.choice((1, 2, 2, 3, 3, 4, 5, 8))
    family = _prompts(chance)
    asks = tuple(_ask(chance, number, family, routers, is_long=is_crowd) for number in range(1, num_asks + 1))
    names = (*routers, *prefill, *decode)
    faults = tuple(_faults(chance, names))
    return Scenario(
        seed,
        routers,
        prefill,
        decode,
        asks,
        faults,
        allow_decode_alone=chance.random() < 0.1,
        sliced=chance.choice((0.0, 0.0, 0.3)),
    )


def _prefill(chance: random.Random) -> PrefillNodeConfig:
    engine = engine_config(
        chance.choice((6, 8, 16)),
        block_tokens=32,
        token_budget=chance.choice((32, 64, 512)),
        layer_group=chance.choice((1, 2)),
    )
    return PrefillNodeConfig(timers=TIMERS, engine=engine, one_write_tokens=chance.choice((0, 0, 64)), max_queued=16)


def _decode(chance: random.Random) -> DecodeNodeConfig:
    engine = engine_config(chance.choice((7, 8, 10, 20)), block_tokens=chance.choice((32, 32, 32, 64)))
    # A block of a prefill node takes 512 bytes: a ring below six of them for one request, probes beside.
    return DecodeNodeConfig(
        timers=TIMERS,
        engine=engine,
        landing_bytes=chance.choice((4096, 8192, 16384)),
        landing_share=chance.choice((0.3, 0.5)),
        pause_unread_tokens=chance.choice((1, 2, 256)),
        max_queued=16,
    )


def _prompts(chance: random.Random) -> list[tuple[int, ...]]:
    """Return a few prompts that share prefixes; few over all seeds, so that the oracle knows most of them."""
    start = chance.randrange(6)
    base = tuple((37 * start + 11 * i * i + 5 * i) % MODEL.vocab_size for i in range(max(LENGTHS)))
    other = base[:64] + tuple((token + 1) % MODEL.vocab_size for token in base[64:])
    return [line[:length] for line in (base, other) for length in LENGTHS]


def _ask(chance: random.Random, number: int, family: list[tuple[int, ...]], routers: tuple[str, ...], *, is_long: bool) -> Ask:
    """Long answers outgrow what was reserved for them: with several of them blocks run short."""
    sampling = SamplingParams(seed=chance.randrange(2), temperature=chance.choice((0.0, 0.0, 1.0)))
    max_tokens = MAX_TOKENS if is_long else chance.choice((1, 2, 3, 6, 10, SHORT))
    prompt = chance.choice([line for line in family if len(line) + max_tokens <= MAX_LENGTH])
    request = Request(RequestId(f"r{number}"), prompt, sampling, StopRules(max_tokens=max_tokens))
    if chance.random() < 0.2:
        drawn = expected(request).tokens
        request = replace(request, stop=replace(request.stop, stop_ids=frozenset({chance.choice(drawn[:4])})))
    return Ask(
        request,
        router=chance.choice(routers),
        at_s=chance.random() * chance.choice((0.01, 0.2, 1.0)),
        timeout_s=chance.choice((40.0, 40.0, 40.0, 5.0, 0.2)),
        leaves_s=chance.random() * chance.choice((0.03, 0.2, 2.0)) if chance.random() < 0.25 else None,
        enough=chance.randrange(1, 5) if chance.random() < 0.1 else None,
    )


def _faults(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    theme = _theme(chance, names) if chance.random() < 0.4 else []
    num_messages = chance.choice((0, 0, 1, 2, 3))
    num_writes = chance.choice((0, 0, 1, 2, 4))
    num_acts = chance.choice((0, 0, 1, 1, 2))
    return [
        *theme,
        *(_message_fault(chance) for _ in range(num_messages)),
        *(_write_fault(chance) for _ in range(num_writes)),
        *(_node_fault(chance, names) for _ in range(num_acts)),
    ]


def _message_fault(chance: random.Random) -> MessageFault:
    method = chance.choices(tuple(METHODS), tuple(METHODS.values()))[0]
    fate = chance.choice(CALL_FATES)
    return MessageFault(method, chance.randrange(1, 5), fate, _delay(chance))


def _write_fault(chance: random.Random) -> MessageFault:
    return MessageFault("write", chance.randrange(1, 12), chance.choice(WRITE_FATES), _delay(chance))


def _theme(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    if "R2" in names and chance.random() < 0.4:
        return _a_ticket_for_an_earlier_life(chance, names)
    return chance.choice(THEMES)(chance, names)


# What is hard: faults that meet each other seldom by chance.


def _a_writer_stopped_in_mid_write(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    nth = chance.randrange(1, 6)
    slow = [MessageFault("write", nth + more, Fate.SLOW, 1 + 7 * chance.random()) for more in range(2)]
    writer = chance.choice([name for name in names if name.startswith("P")])
    return [*slow, NodeFault(Act.FREEZE, writer, When("write", nth, chance.random() * 1e-3), 8.0)]


def _notes_that_run_ahead(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    first = chance.randrange(1, 4)
    fates = (Fate.NOTE_EARLY, Fate.NOTE_DOUBLED, Fate.NOTE_LOST, Fate.SLOW)
    return [MessageFault("write", first + more, chance.choice(fates), chance.random() * 0.02) for more in range(6)]


def _a_prefill_that_comes_too_late(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    return [MessageFault("Prefill", chance.randrange(1, 3), Fate.LATE, 2.0 + 3 * chance.random())]


def _a_reservation_made_twice(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    nth = chance.randrange(1, 3)
    late = chance.choice((Fate.ANSWER_LOST, Fate.ANSWER_BROKEN, Fate.DOUBLED))
    twice = MessageFault("Reserve", nth, Fate.DOUBLED, chance.random() * 0.3)
    return [twice, *(MessageFault("Done", number, late, chance.random() * 0.5) for number in (1, 2))]


def _a_decode_node_lost_in_mid_answer(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    node = chance.choice([name for name in names if name.startswith("D")])
    return [NodeFault(Act.KILL, node, When("Done", chance.randrange(1, 4), chance.random() * 0.05), chance.choice((0.1, 4.0)))]


def _a_ticket_for_an_earlier_life(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    """One router is frozen with a ticket in its hands while another one introduces the prefill node's next life."""
    nth, node = chance.randrange(1, 4), chance.choice([name for name in names if name.startswith("P")])
    return [
        NodeFault(Act.KILL, node, When("Reserve", nth, chance.random() * 2e-3), 0.05),
        NodeFault(Act.FREEZE, CALLER, When("Reserve", nth, chance.random() * 3e-3), 2.9),
    ]


def _an_engine_that_hangs_for_long(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    return [NodeFault(Act.HANG, CALLED, When("Prefill", chance.randrange(1, 3), 0.0), 50.0)]


def _writes_that_fail_and_land(chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    first = chance.randrange(1, 6)
    return [MessageFault("write", first + more, Fate.FAILED_BUT_LANDS, 3 * chance.random()) for more in range(2)]


THEMES = (
    _a_writer_stopped_in_mid_write,
    _notes_that_run_ahead,
    _a_prefill_that_comes_too_late,
    _a_reservation_made_twice,
    _a_decode_node_lost_in_mid_answer,
    _an_engine_that_hangs_for_long,
    _writes_that_fail_and_land,
)


def _delay(chance: random.Random) -> float:
    return chance.random() * chance.choice((0.01, 0.1, 1.0, 3.0, 8.0))


def _node_fault(chance: random.Random, names: tuple[str, ...]) -> NodeFault:
    act = chance.choices(tuple(Act), (4, 4, 1, 1, 2, 2))[0]
    nodes = [name for name in names if not name.startswith("R")]
    process = chance.choice(nodes if act in (Act.HANG, Act.DRAIN) else names)
    other = chance.choice([name for name in names if name != process]) if act in (Act.PARTITION, Act.CUT) else ""
    if chance.random() < 0.3:
        when = When("", 0, chance.random() * 1.5)
    else:
        method = chance.choice(("write", "write", "Prefill", "Reserve", "Done", "Landed", "Abort", "Heartbeat"))
        when = When(method, chance.randrange(1, 5), chance.random() * chance.choice((0.001, 0.01, 0.1)))
    return NodeFault(act, process, when, chance.choice((0.1, 0.5, 1.5, 4.0, 8.0)), other)


__all__ = ["TIMERS", "Ask", "Fate", "Scenario", "draw"]
