"""What a client asks beside its request, and what is said when that makes no sense."""

import pytest

from twostep.core.errors import InvalidRequest
from twostep.core.request import ServiceLevel
from twostep.router.front.openai.generation_fields import GenerationFields
from twostep.router.front.wishes import NO_WISHES, Wishes, read_wishes


def read(**given: str) -> Wishes:
    return read_wishes({name.replace("_", "-"): value for name, value in given.items()}.get)


def test_nothing_asked_is_nothing_wished() -> None:
    assert read() == NO_WISHES


def test_everything_can_be_asked() -> None:
    wishes = read(
        twostep_priority="-5",
        twostep_tenant="acme",
        twostep_session="s-1",
        x_slo_ttft_ms="250",
        x_slo_tpot_ms="12.5",
        x_deadline_ms="2000",
    )
    assert wishes == Wishes(ServiceLevel(-5, "acme", 0.25, 0.0125), "s-1", 2.0)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("twostep-priority", "high", "a whole number from -1000000 to 1000000, lower is served earlier"),
        ("twostep-priority", "1.5", "a whole number"),
        ("twostep-priority", "10000000", "a whole number"),
        ("twostep-tenant", "a b", "up to 128 letters"),
        ("twostep-tenant", "", "up to 128 letters"),
        ("twostep-session", "x" * 129, "up to 128 letters"),
        ("x-slo-ttft-ms", "0", "milliseconds, more than 0"),
        ("x-slo-ttft-ms", "-1", "milliseconds"),
        ("x-slo-tpot-ms", "nan", "milliseconds"),
        ("x-slo-tpot-ms", "1e3", "milliseconds"),
        ("x-deadline-ms", "86400001", "at most 8.64e\\+07"),
        ("x-deadline-ms", "soon", "milliseconds"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(key: str, value: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{key}: expected .*{expected}") as raised:
        read_wishes({key: value}.get)
    assert (raised.value.param, repr(value[:80]) in raised.value.message) == (key, True)


def test_what_the_request_itself_says_goes_first() -> None:
    wishes = read(twostep_priority="7", twostep_session="header", twostep_tenant="acme")
    assert wishes.with_fields(GenerationFields()) == wishes
    told = wishes.with_fields(GenerationFields(priority=-1, prompt_cache_key="body"))
    assert (told.level, told.session) == (ServiceLevel(-1, "acme"), "body")
