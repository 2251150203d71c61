"""What a chat template is given: the messages of one conversation and how the client wants them rendered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """JSON values only. `template` names one of the model's templates; None lets the model's own rule choose.

    `settings` are the template's own variables, such as `enable_thinking`.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None


class Renderer(Protocol):
    """Turns conversations into the text of prompts."""

    async def render(self, conversation: Conversation) -> str:
        """Return the prompt's text. Raises InvalidRequest when the template refuses the conversation, and Overloaded."""
