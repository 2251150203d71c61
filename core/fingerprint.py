"""What two nodes must agree on before a KV cache of one means anything to the other."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from twostep.core.errors import FingerprintMismatch

PROTOCOL_VERSION = 1
NOT_SENT = "(not sent)"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Every field must be equal on P and on D; a refusal names the first that is not."""

    model: str
    weights: str
    tokenizer: str
    layout: str
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope: str
    sampler: str
    numerics: str = ""
    """What decides the bits of a result: the kernels, their version and their instructions."""
    model_config: str = ""
    """A digest of what the model was built from: activation, norms, scales and caps too, which no weight shows."""
    adapter: str = ""
    kv_scales: str = "none"
    sliding_window: str = "none"
    hash_scheme: str = ""
    salt_rule: str = ""
    digest: str = ""
    grammar: str = "none"
    protocol: int = PROTOCOL_VERSION

    def require_equal(self, other: "Fingerprint", *, here: str, there: str) -> None:
        """Raise FingerprintMismatch, naming the field and both values, unless `other` equals this one."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs:
                raise FingerprintMismatch(
                    f"{field.name} differs: {here} has {mine!r}, {there} has {theirs!r}", param=field.name
                )

    def as_dict(self) -> dict[str, str]:
        """Return all fields as text, for the wire."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, str]) -> "Fingerprint":
        """Rebuild a fingerprint from the wire.

        A field that the peer does not send, or a number that is none, counts as different, never as equal by default.
        """
        filled: dict[str, Any] = {}
        for field in fields(cls):
            value = values.get(field.name, NOT_SENT)
            filled[field.name] = _count(value) if field.type is int else value
        return cls(**filled)


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1


@dataclass(frozen=True, slots=True)
class Geometry:
    """What may differ between P and D and is settled per pair: sizes in tokens and layers, head range [first, end)."""

    block_tokens: int
    max_model_tokens: int
    layer_group: int
    first_head: int
    end_head: int
    tp_size: int = 1
