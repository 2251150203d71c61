"""Draws what nodes did as trace events, for Perfetto or any viewer of Chrome's format. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twostep.cli.node_client import Span, Step, Trace

Event = Mapping[str, Any]
ENGINE_THREAD = 1


@dataclass(frozen=True, slots=True)
class Heard:
    """A node's answer, and when it was heard, in seconds by the asker's clock: that puts several nodes on one time axis."""

    trace: Trace
    at: float


def trace_events(heard: Sequence[Heard]) -> list[Event]:
    """Return the events of all nodes, each a process: the engine's steps on a thread, requests as nested async slices.

    Times are in microseconds from the earliest event.
    """
    start = min((one.at - age_s for one in heard for age_s in _ages(one.trace)), default=0.0)
    return [event for pid, one in enumerate(heard, 1) for event in _node_events(pid, one.trace, one.at - start)]


def _ages(trace: Trace) -> Iterator[float]:
    yield from (step.age_s for step in trace.steps)
    yield from (span.age_s for span in trace.spans)


def _node_events(pid: int, trace: Trace, heard_at: float) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": trace.node}}
    yield {"ph": "M", "pid": pid, "tid": ENGINE_THREAD, "name": "thread_name", "args": {"name": "engine"}}
    for step, after in zip(trace.steps, (*trace.steps[1:], None), strict=False):
        yield from _step_events(pid, step, heard_at - step.age_s)
        if after is None or after.gap_s is None:
            yield _tokens(pid, heard_at - step.age_s + step.duration_s, 0, 0)
    for spans in _by_attempt(trace.spans).values():
        yield from _request_events(pid, spans, heard_at)


def _step_events(pid: int, step: Step, at: float) -> Iterator[Event]:
    yield {
        "ph": "X",
        "pid": pid,
        "tid": ENGINE_THREAD,
        "name": _kind(step),
        "ts": _us(at),
        "dur": _us(step.duration_s),
        "args": {
            "step": step.number,
            "requests": step.requests,
            "decode tokens": step.decode_tokens,
            "prompt tokens": step.prompt_tokens,
            "token budget": step.token_budget,
            "prefix hit tokens": step.hit_tokens,
            "preempted": step.preempted,
            **({} if step.gap_s is None else {"gap ms": round(1e3 * step.gap_s, 3)}),
        },
    }
    yield _tokens(pid, at, step.decode_tokens, step.prompt_tokens)


def _kind(step: Step) -> str:
    if not step.prompt_tokens:
        return "decode"
    return "decode + prefill" if step.decode_tokens else "prefill"


def _tokens(pid: int, at: float, decode: int, prompt: int) -> Event:
    return {"ph": "C", "pid": pid, "name": "tokens in a step", "ts": _us(at), "args": {"decode": decode, "prompt": prompt}}


def _by_attempt(spans: Sequence[Span]) -> Mapping[tuple[str, int], list[Span]]:
    attempts: dict[tuple[str, int], list[Span]] = {}
    for span in spans:
        attempts.setdefault((span.request, span.attempt), []).append(span)
    return attempts


def _request_events(pid: int, spans: Sequence[Span], heard_at: float) -> Iterator[Event]:
    """One slice for the attempt, and inside it one for each of its phases, which follow each other."""
    first, last = spans[0], spans[-1]
    name = f"{first.request}, attempt {first.attempt}"
    yield _slice("b", pid, first, name, heard_at - first.age_s)
    for span in spans:
        yield _slice("b", pid, span, span.phase, heard_at - span.age_s)
        yield _slice("e", pid, span, span.phase, heard_at - span.age_s + span.duration_s)
    yield _slice("e", pid, last, name, heard_at - last.age_s + last.duration_s)


def _slice(edge: str, pid: int, span: Span, name: str, at: float) -> Event:
    return {
        "ph": edge,
        "cat": "request",
        "id": f"{pid}/{span.request}/{span.attempt}",
        "pid": pid,
        "tid": 0,
        "name": name,
        "ts": _us(at),
    }


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)
