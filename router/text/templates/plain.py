"""The prompt of the fake model, which has no chat template: one line a message, in the open."""

import json

from twostep.core.errors import InvalidRequest
from twostep.router.text.templates.conversation import Conversation, Message


class PlainRenderer:
    async def render(self, conversation: Conversation) -> str:
        if conversation.template not in (None, "default"):
            raise InvalidRequest("chat_template: the fake model has none to choose from", param="chat_template")
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in _extras(conversation).items() if value]
        lines += [f"{message['role']}: {_text(message)}\n" for message in conversation.messages]
        if conversation.continue_final_message:
            return "".join(lines).removesuffix("\n")
        return "".join(lines) + ("assistant:" if conversation.add_generation_prompt else "")


def _extras(conversation: Conversation) -> dict[str, object]:
    return {"tools": conversation.tools, "documents": conversation.documents, "settings": conversation.settings}


def _text(message: Message) -> str:
    content = message.get("content")
    text = "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""
    return f"{text}{json.dumps(message['tool_calls'])}" if message.get("tool_calls") else text
