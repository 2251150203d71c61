"""Texts for the router's benchmark: random English-like words, by seed, and the requests that ask for them to be continued."""

import json
import random

LONG_CHARACTERS = 220_000
WORDS = (
    *("the", "of", "and", "to", "in", "is", "that", "for", "was", "on", "with", "as", "by", "at", "from", "are", "this"),
    *("be", "it", "have", "not", "or", "which", "were", "an", "their", "but", "system", "request", "memory", "network"),
    *("router", "prefill", "decode", "token", "cache", "block", "server", "latency", "cluster", "message", "buffer"),
    *("however", "although", "between", "through", "because", "during", "without", "against", "another", "important"),
)


def text(num_characters: int, seed: int) -> str:
    """Return a text of about that length: sentences, paragraphs, some numbers."""
    chance = random.Random(seed)
    parts: list[str] = []
    length = 0
    while length < num_characters:
        sentence = " ".join(chance.choice(WORDS) for _ in range(chance.randrange(6, 18)))
        end = chance.choice((". ", ". ", f" {chance.randrange(10_000)}. ", ".\n\n"))
        parts.append(sentence.capitalize() + end)
        length += len(parts[-1])
    return "".join(parts)[:num_characters]


def chat(model: str, prompt: str, max_tokens: int) -> str:
    """Return the body of a streamed chat completion."""
    messages = [{"role": "user", "content": prompt}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": max_tokens, "stream": True, "temperature": 0})
