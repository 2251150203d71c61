"""Reads how a byte-level BPE tokenizer cuts ASCII text into words: the rules of its tokenizer.json, as Python's expressions.

What a letter is beyond ASCII differs between libraries, so that these rules hold for ASCII alone.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Split = Callable[[str], list[str]]
"""Cuts a text into parts that add up to it."""

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel` cuts by."""
NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
"""They leave ASCII as it is."""
WHITE = r" \t-\r"
CLASSES = {
    r"\p{L}": "a-zA-Z",
    r"\p{Lu}": "A-Z",
    r"\p{Ll}": "a-z",
    r"\p{N}": "0-9",
    r"\s": WHITE,
    r"\r": r"\r",
    r"\n": r"\n",
    r"\t": r"\t",
    # There are none in ASCII.
    r"\p{Lt}": "",
    r"\p{Lm}": "",
    r"\p{Lo}": "",
    r"\p{M}": "",
}
"""What stands for a class of characters inside brackets."""
PART = re.compile(r"\\p\{\w+\}|\\.|\[\^?|\]|[^\\\[\]]", re.DOTALL)


class UnknownRule(Exception):
    """This tokenizer cuts texts by something that is not known here."""


def word_splits(settings: Mapping[str, Any]) -> list[Split]:
    """Return what cuts a text into words, one after the other; `settings` is a tokenizer.json. Raises UnknownRule."""
    model = settings["model"]
    if model["type"] != "BPE" or any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
        raise UnknownRule("its model does more than merge inside words")
    if any(step["type"] not in NORMALIZERS for step in _steps(settings.get("normalizer"), "normalizers")):
        raise UnknownRule("its normalizer changes ASCII")
    *cuts, last = _steps(settings.get("pre_tokenizer"), "pretokenizers") or [{"type": "none"}]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        raise UnknownRule("it is not byte-level")
    splits = [_split_of(step) for step in cuts]
    return [*splits, _isolating(GPT2)] if last.get("use_regex", True) else splits


def _split_of(step: Mapping[str, Any]) -> Split:
    match step:
        case {"type": "Digits", "individual_digits": is_each}:
            return re.compile("[0-9]|[^0-9]+" if is_each else "[0-9]+|[^0-9]+").findall
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            return _isolating(pattern)
    raise UnknownRule(f"a step of its pre-tokenizer is {step['type']!r}")


def _isolating(pattern: str) -> Split:
    """Return what cuts out all that matches; what is between matches stays as it is."""
    rule = re.compile(in_ascii(pattern))
    if rule.groups:
        raise UnknownRule(f"a rule has groups: {pattern!r}")

    def split(text: str) -> list[str]:
        words: list[str] = rule.findall(text)
        # Most rules leave nothing out.
        return words if sum(map(len, words)) == len(text) else list(_with_gaps(rule, text))

    return split


def in_ascii(pattern: str) -> str:
    """Return an expression of Python's that matches in ASCII text what Oniguruma's `pattern` does. Raises UnknownRule."""
    told: list[str] = []
    is_inside = False
    for part in PART.findall(pattern):
        if part in ("[", "[^") and is_inside:
            raise UnknownRule(f"a rule has classes in classes: {pattern!r}")
        if part[0] == "\\":
            told.append(_escape_in_ascii(part, is_inside=is_inside))
        else:
            is_inside = part in ("[", "[^") or (is_inside and part != "]")
            told.append(part)
    try:
        re.compile("".join(told))
    except re.error as cause:
        raise UnknownRule(f"a rule is none of Python's: {pattern!r}: {cause}") from cause
    return "".join(told)


def _escape_in_ascii(part: str, *, is_inside: bool) -> str:
    if part in CLASSES:
        return CLASSES[part] if is_inside else f"[{CLASSES[part]}]"
    if part == r"\S" and not is_inside:
        return f"[^{WHITE}]"
    if part[1].isalnum():
        raise UnknownRule(f"a rule has {part!r}")
    return part


def _with_gaps(rule: "re.Pattern[str]", text: str) -> Iterator[str]:
    end = 0
    for found in rule.finditer(text):
        yield from (text[end : found.start()], found.group())
        end = found.end()
    yield text[end:]


def _steps(told: Any, parts: str) -> Sequence[Mapping[str, Any]]:
    if told is None:
        return []
    return [step for part in told[parts] for step in _steps(part, parts)] if told["type"] == "Sequence" else [told]
