"""The latest requests and what became of them, for whoever asks later why one was served as it was."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from twostep.core.errors import ServingError
from twostep.core.ids import RequestId
from twostep.core.request import Request
from twostep.router.bill import Bill
from twostep.router.placement.choose import Placement
from twostep.router.placement.placer import Found

MAX_STORIES = 1024
RUNNING = "running"
ABANDONED = "client_gone"


@dataclass(slots=True)
class AttemptStory:
    """One attempt: where it was placed, how many tokens the answer had by then, and why it failed, if it did.

    What came of one that ended well can be held against what its placement expected: `first_token_s` after its nodes were
    asked, at `asked_at` on the router's clock, None where an earlier attempt brought the first token, and what was `found` in
    the prefix caches.
    """

    placement: Placement
    num_tokens: int
    asked_at: float
    error: str = ""
    first_token_s: float | None = None
    found: Found | None = None


@dataclass(slots=True)
class RequestStory:
    """One request as the router has seen it; `arrived_at` in seconds since 1970. Filled in while it is served."""

    request: RequestId
    client_id: str
    arrived_at: float
    num_prompt_tokens: int
    attempts: list[AttemptStory] = field(default_factory=list)
    outcome: str = RUNNING
    bill: Bill | None = None

    def begin_attempt(self, placement: Placement, num_tokens: int, now: float) -> None:
        self.attempts.append(AttemptStory(placement, num_tokens, now))

    def fail_attempt(self, error: str, placement: Placement | None = None) -> None:
        """Note why the attempt that was placed there has failed, by default the latest. What is noted first stands."""
        tried = self._latest(placement)
        if tried and not tried.error:
            tried.error = error

    def end_attempt(self, placement: Placement, first_token: float | None, found: Found) -> None:
        """Note what came of the attempt that was placed there, and ended well; `first_token` is when the request's came."""
        tried = self._latest(placement)
        if tried is None:
            return
        tried.found = found
        if first_token is not None and first_token >= tried.asked_at:
            tried.first_token_s = first_token - tried.asked_at

    def _latest(self, placement: Placement | None) -> AttemptStory | None:
        return next((one for one in reversed(self.attempts) if placement is None or one.placement is placement), None)


@contextmanager
def told(story: RequestStory) -> Iterator[None]:
    """Note how the request that is served in the block ends, unless the block does: a failure is its error."""
    try:
        yield
    except ServingError as error:
        story.outcome = error.code
        story.fail_attempt(error.message)
        raise
    finally:
        story.outcome = ABANDONED if story.outcome == RUNNING else story.outcome


class History:
    """Keeps the latest `limit` stories; found by the request's own name or by its client's, the latest of that name."""

    def __init__(self, limit: int = MAX_STORIES, wall_clock: Callable[[], float] = time.time) -> None:
        self._limit = limit
        self._wall_clock = wall_clock
        self._stories: dict[RequestId, RequestStory] = {}
        self._by_client_id: dict[str, RequestStory] = {}

    def begin(self, request: Request, client_id: str, *, age_s: float = 0.0) -> RequestStory:
        """Return the story of a request that arrived `age_s` ago; it is kept until `limit` others have begun."""
        story = RequestStory(request.id, client_id, self._wall_clock() - age_s, len(request.prompt))
        while len(self._stories) >= self._limit:
            self._forget(next(iter(self._stories.values())))
        self._stories[request.id] = story
        if client_id and client_id != request.id:
            self._by_client_id[client_id] = story
        return story

    def find(self, name: str) -> RequestStory | None:
        """Return the story of `name`: a request's id, its client's, or the id of an OpenAI reply."""
        own = RequestId(name if name.startswith("req-") else f"req-{name.partition('-')[2]}")
        return self._stories.get(RequestId(name)) or self._by_client_id.get(name) or self._stories.get(own)

    def _forget(self, story: RequestStory) -> None:
        del self._stories[story.request]
        if self._by_client_id.get(story.client_id) is story:
            del self._by_client_id[story.client_id]
