"""From a parsed chat request to the conversation that the model's chat template renders."""

from twostep.core.errors import InvalidRequest
from twostep.router.front.openai.chat_request import ChatMessage, ChatRequest
from twostep.router.text.templates.conversation import Conversation, Message


def conversation_of(chat: ChatRequest) -> Conversation:
    """Return what the template is given. Raises InvalidRequest when the request contradicts itself.

    Tools are left out when the client says that none may be called.
    """
    if chat.continue_final_message and chat.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message: the last message is either continued or followed by a new one, "
            "found add_generation_prompt true as well",
            param="continue_final_message",
        )
    starts_new = not chat.continue_final_message if chat.add_generation_prompt is None else chat.add_generation_prompt
    return Conversation(
        messages=[_template_message(message) for message in chat.messages],
        tools=None if chat.tool_choice == "none" else chat.tools or None,
        documents=chat.documents or None,
        add_generation_prompt=starts_new,
        continue_final_message=chat.continue_final_message,
        settings=chat.chat_template_kwargs or {},
        template=chat.chat_template,
    )


def _template_message(message: ChatMessage) -> Message:
    return message.model_dump(exclude_none=True)
