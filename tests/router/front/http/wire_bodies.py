"""Bodies of requests as clients could write them: mostly right, wrong in all ways."""

from typing import Any

from hypothesis import strategies as st

from twostep.router.front.openai.chat_request import CHAT_NEUTRAL, ChatRequest
from twostep.router.front.openai.completion_request import COMPLETION_NEUTRAL, CompletionRequest

numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 1, 16, 1 << 31, 1 << 32, 1 << 63, 1 << 64, 10**400])
texts = st.text(max_size=20) | st.sampled_from(
    ["text", "user", "auto", "none", "function", "default", "fake", "\0", "😀", "<|im_end|>"]
)
scalars = st.none() | st.booleans() | numbers | texts
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)

functions = st.fixed_dictionaries({"name": texts}, optional={"parameters": anything, "description": anything})
tools = st.fixed_dictionaries({"type": st.just("function"), "function": functions})
arguments = st.sampled_from(["{}", "", '{"a": [1, null]}', "[]", "{", "1e999", '{"a": NaN}', "9" * 5000, "[" * 5000]) | texts
calls = st.fixed_dictionaries(
    {"id": texts, "type": st.just("function"), "function": st.fixed_dictionaries({"name": texts, "arguments": arguments})}
)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), min_size=1, max_size=3)
said = texts | parts
plain = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]), "content": said},
    optional={"name": texts, "tool_call_id": texts, "reasoning_content": texts, "unknown": anything},
)
calling = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": said | st.none(), "tool_calls": st.lists(calls, min_size=1, max_size=2)}
)
wrong_messages = st.lists(
    plain | calling | anything | st.dictionaries(st.sampled_from(["role", "content"]), anything), max_size=3
)
messages = st.lists(plain | plain | calling, min_size=1, max_size=4) | wrong_messages

likely = {
    "messages": messages,
    "prompt": texts | st.lists(texts | st.lists(numbers, max_size=3) | numbers, max_size=3) | anything,
    "model": st.just("fake"),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "max_tokens": st.integers(1, 20),
    "temperature": st.floats(0, 2),
    "seed": st.integers(-(1 << 63), (1 << 64) - 1),
    "stop": texts | st.lists(texts, max_size=5),
    "tools": st.lists(tools, max_size=2),
    "tool_choice": st.sampled_from(["none", "auto"]),
    "documents": st.lists(st.dictionaries(texts, anything, max_size=3), max_size=2),
    "chat_template_kwargs": st.dictionaries(texts, anything, max_size=3),
    "chat_template": st.just("default"),
    "continue_final_message": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "bill": st.booleans(),
    "echo": st.booleans(),
    "add_special_tokens": st.just(False),
}


def bodies(required: str, known: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies that are mostly right: known fields with likely values, now and then two with any value at all."""
    optional = {name: strategy for name, strategy in likely.items() if name in known and name != required}
    right = st.fixed_dictionaries({required: likely[required]}, optional=optional)
    wrong = st.dictionaries(st.sampled_from(sorted(known)) | texts, anything, max_size=2)
    return st.builds(lambda first, second: {**first, **second}, right, st.just({}) | wrong)


chats = bodies("messages", {*ChatRequest.model_fields, *CHAT_NEUTRAL})
completions = bodies("prompt", {*CompletionRequest.model_fields, *COMPLETION_NEUTRAL})
tokenizations = bodies("prompt", {"model", "add_special_tokens", "return_token_strs"}) | chats
detokenizations = st.fixed_dictionaries(
    {"tokens": st.lists(st.integers(0, 300), max_size=9) | anything}, optional={"model": texts}
)
PATHS = {
    "/v1/chat/completions": chats,
    "/v1/completions": completions,
    "/tokenize": tokenizations,
    "/detokenize": detokenizations,
}
