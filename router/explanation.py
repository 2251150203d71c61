"""Says of one request why it was served where it was, and what came of that. Pure: a story in, plain values out."""

from twostep.router.history import AttemptStory, RequestStory
from twostep.router.node_view import NodeView
from twostep.router.openai.event import Json


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
    placement = attempt.placement
    return {
        "prefill": _node(placement.prefill),
        "decode": _node(placement.decode),
        "why": placement.bypass or "least_loaded_pair",
        "tokens_before": attempt.num_tokens,
        "error": attempt.error,
    }


def _node(node: NodeView | None) -> Json | None:
    return {"node": str(node.ref), "load": node.load} if node else None
