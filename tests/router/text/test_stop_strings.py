"""Stop strings are found wherever they stand, and nothing that may be one is shown early."""

from hypothesis import given
from hypothesis import strategies as st

from twostep.router.text.stop_strings import StopStrings


def feed(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    finder = StopStrings(stops)
    shown = [finder.feed(piece) for piece in pieces]
    return [*shown, finder.flush()], finder.matched


def test_without_stop_strings_text_is_shown_at_once() -> None:
    assert feed([], ["a", "b"]) == (["a", "b", ""], None)


def test_text_before_a_stop_string_is_shown_and_nothing_after() -> None:
    assert feed(["END"], ["one END two", " three"]) == (["one ", "", ""], "END")


def test_a_stop_string_is_found_across_pieces() -> None:
    assert feed(["END"], ["one E", "N", "D two"]) == (["one ", "", "", ""], "END")


def test_text_that_turns_out_not_to_stop_is_shown_later() -> None:
    assert feed(["END"], ["E", "N", "X"]) == (["", "", "ENX", ""], None)


def test_what_is_held_back_at_the_end_is_shown() -> None:
    assert feed(["END"], ["the E", "N"]) == (["the ", "", "EN"], None)


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert feed(["two", "one"], ["zero one two"]) == (["zero ", ""], "one")
    assert feed(["abcd", "bc"], ["abcd"]) == (["a", ""], "bc")


def test_of_two_complete_at_the_same_place_the_longer_wins() -> None:
    assert feed(["b", "ab"], ["xab"]) == (["x", ""], "ab")


def test_a_stop_string_that_repeats_its_own_beginning_is_found() -> None:
    assert feed(["aab"], ["a", "a", "a", "b"]) == (["", "", "a", "", ""], "aab")


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_cut_of_the_text_into_pieces_never_matters(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    shown, matched = feed(stops, pieces)
    shown_by_character, matched_by_character = feed(stops, list(whole))
    assert ("".join(shown), matched) == ("".join(shown_by_character), matched_by_character)
    assert "".join(shown) == (whole if matched is None else whole[: whole.find(matched)])
    assert not any(stop in "".join(shown) for stop in stops)
