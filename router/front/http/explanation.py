"""Says of one request why it was served where it was, and what came of that. Pure: a story in, plain values out."""

from dataclasses import asdict

from twostep.router.front.openai.event import Json
from twostep.router.placement.choose import Cost
from twostep.router.placement.node_view import NodeView
from twostep.router.placement.placer import Found
from twostep.router.requests.history import AttemptStory, RequestStory


def explain(story: RequestStory) -> Json:
    """Return the explanation as the HTTP door tells it; times in seconds."""
    return {
        "request": story.request,
        "client_id": story.client_id,
        "arrived_at": story.arrived_at,
        "prompt_tokens": story.num_prompt_tokens,
        "outcome": story.outcome,
        "attempts": [_attempt(attempt) for attempt in story.attempts],
        "bill": story.bill.as_json() if story.bill else None,
    }


def _attempt(attempt: AttemptStory) -> Json:
    placement, found = attempt.placement, attempt.found
    return {
        "prefill": _node(placement.prefill),
        "decode": _node(placement.decode),
        "why": placement.bypass or "cheapest_pair",
        "expected_s": _cost(placement.cost),
        "expected_alone_s": _cost(placement.alone_cost),
        "expected_cached_tokens": placement.cached_tokens,
        "expected_decode_cached_tokens": placement.decode_cached_tokens,
        "first_token_s": attempt.first_token_s,
        "found_cached_tokens": _computing_node_found(found, alone=placement.prefill is None) if found else None,
        "found_decode_cached_tokens": found.decode_tokens if found else None,
        "tokens_before": attempt.num_tokens,
        "error": attempt.error,
    }


def _computing_node_found(found: Found, *, alone: bool) -> int | None:
    """Return None where a prefill node has not told."""
    return found.decode_tokens if alone else found.prefill_tokens


def _cost(cost: Cost | None) -> Json | None:
    return {**asdict(cost), "ttft": cost.ttft, "total": cost.total} if cost else None


def _node(node: NodeView | None) -> Json | None:
    return {"node": str(node.ref), "load": node.load} if node else None
