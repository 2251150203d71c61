from dataclasses import fields, replace
from typing import Any

import pytest

from twostep.core.errors import FingerprintMismatch
from twostep.core.fingerprint import Fingerprint

FINGERPRINT = Fingerprint(
    model="m",
    weights="w",
    tokenizer="t",
    layout="l",
    dtype="float32",
    num_layers=2,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=100,
    rope="r",
    sampler="s",
)


def test_a_fingerprint_equals_itself() -> None:
    FINGERPRINT.require_equal(FINGERPRINT, here="p", there="d")


@pytest.mark.parametrize("name", [field.name for field in fields(Fingerprint)])
def test_a_difference_in_any_field_is_refused_by_its_name(name: str) -> None:
    value = getattr(FINGERPRINT, name)
    changed: dict[str, Any] = {name: value + 1 if isinstance(value, int) else value + "x"}
    other = replace(FINGERPRINT, **changed)
    with pytest.raises(FingerprintMismatch, match=f"^{name} differs: p has .*, d has ") as caught:
        FINGERPRINT.require_equal(other, here="p", there="d")
    assert caught.value.param == name


def test_a_fingerprint_survives_the_wire() -> None:
    assert Fingerprint.from_dict(FINGERPRINT.as_dict()) == FINGERPRINT


@pytest.mark.parametrize("name", [field.name for field in fields(Fingerprint)])
def test_a_field_that_the_peer_does_not_send_counts_as_different(name: str) -> None:
    sent = {key: value for key, value in FINGERPRINT.as_dict().items() if key != name}
    with pytest.raises(FingerprintMismatch, match=f"^{name} differs"):
        FINGERPRINT.require_equal(Fingerprint.from_dict(sent), here="p", there="d")


def test_a_number_that_is_none_counts_as_different() -> None:
    sent = FINGERPRINT.as_dict() | {"head_dim": "sixty-four"}
    with pytest.raises(FingerprintMismatch, match=r"^head_dim differs"):
        FINGERPRINT.require_equal(Fingerprint.from_dict(sent), here="p", there="d")
