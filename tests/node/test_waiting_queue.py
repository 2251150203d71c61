import pytest

from twostep.node.bypass import Patience
from twostep.node.waiting_queue import MAX_IN_VAIN, Tried, WaitingQueue

STRICT = Patience(max_passes=0, max_wait_s=10.0)


class Rig:
    """Admits whoever fits into the free places, and remembers whom. An item's name begins with the places it takes."""

    def __init__(self, places: int, patience: Patience = STRICT) -> None:
        self.places = places
        self.admitted: list[str] = []
        self.now = 0.0
        self.num_bypasses = 0
        self.waiting: WaitingQueue[str] = WaitingQueue(self.admit, lambda: self.now, patience, on_bypass=self.count)

    def admit(self, item: str) -> Tried:
        if item.startswith("held"):
            return Tried.NOT_YET
        if item.startswith("full"):
            return Tried.GROUP_FULL
        size = int(item[0]) if item[0].isdigit() else 1
        if self.places < size:
            return Tried.NO_ROOM
        self.places -= size
        self.admitted.append(item)
        return Tried.ADMITTED

    def count(self) -> None:
        self.num_bypasses += 1

    def free(self, places: int) -> None:
        self.places += places
        self.waiting.advance()


def test_who_finds_a_place_never_waits() -> None:
    rig = Rig(1)
    rig.waiting.append("a")
    assert rig.admitted == ["a"]
    assert list(rig.waiting) == []


def test_places_go_to_those_who_came_first() -> None:
    rig = Rig(0)
    for name in ("a", "b", "c"):
        rig.waiting.append(name)
    rig.places = 2
    rig.waiting.advance()
    assert rig.admitted == ["a", "b"]
    assert list(rig.waiting) == ["c"]


def test_who_leaves_the_queue_is_not_admitted_and_those_behind_move_up() -> None:
    rig = Rig(0)
    for name in ("a", "b"):
        rig.waiting.append(name)
    rig.places = 1
    assert rig.waiting.remove("a")
    assert not rig.waiting.remove("a")
    assert rig.admitted == ["b"]


def test_who_was_admitted_before_stands_first_again() -> None:
    rig = Rig(0)
    rig.waiting.append("a")
    rig.waiting.prepend("b")
    assert list(rig.waiting) == ["b", "a"]


def test_those_who_wait_are_served_in_an_order_that_is_asked_for_each_time() -> None:
    best = ["c"]
    rig = Rig(0)
    rig.waiting = WaitingQueue(
        rig.admit,
        lambda: rig.now,
        STRICT,
        order=lambda items: sorted(range(len(items)), key=lambda place: (items[place] not in best, place)),
    )
    for name in ("a", "b", "c", "d"):
        rig.waiting.append(name)
    assert list(rig.waiting) == ["c", "a", "b", "d"]
    best.append("d")
    rig.free(2)
    assert rig.admitted == ["c", "d"]
    rig.waiting.prepend("e")
    assert list(rig.waiting) == ["e", "a", "b"]


def test_an_item_that_leaves_while_it_is_admitted_takes_nobody_with_it() -> None:
    served: list[str] = []

    def admit(item: str) -> Tried:
        waiting.remove(item)
        served.append(item)
        return Tried.ADMITTED if len(served) < 2 else Tried.NO_ROOM

    waiting: WaitingQueue[str] = WaitingQueue(lambda _: Tried.NO_ROOM, lambda: 0.0, STRICT)
    for name in ("a", "b", "c"):
        waiting.append(name)
    waiting._try_admit = admit
    waiting.advance()
    assert served == ["a", "b", "c"]
    assert list(waiting) == []


def test_room_that_comes_back_while_one_is_tried_goes_to_those_who_came_first() -> None:
    tried: list[str] = []

    def admit(item: str) -> Tried:
        tried.append(item)
        if item == "failing" and len(tried) == 2:
            waiting.advance()
            return Tried.GONE
        return Tried.ADMITTED if len(tried) > 2 else Tried.NO_ROOM

    waiting: WaitingQueue[str] = WaitingQueue(lambda _: Tried.NO_ROOM, lambda: 0.0, Patience(1, 1.0))
    waiting.append("first")
    waiting.append("failing")
    waiting._try_admit = admit
    waiting.advance()
    assert tried == ["first", "failing", "first"]
    assert list(waiting) == []


def test_small_ones_pass_a_big_one_so_often_and_no_oftener() -> None:
    rig = Rig(0, Patience(max_passes=2, max_wait_s=10.0))
    for name in ("5 big", "a", "b", "c"):
        rig.waiting.append(name)
    rig.free(3)
    assert rig.admitted == ["a", "b"]
    rig.free(4)
    assert rig.admitted == ["a", "b", "5 big"]
    rig.free(0)
    assert rig.admitted == ["a", "b", "5 big"]
    rig.free(1)
    assert rig.admitted == ["a", "b", "5 big", "c"]
    assert rig.num_bypasses == 2


def test_small_ones_pass_a_big_one_for_so_long_and_no_longer() -> None:
    rig = Rig(0, Patience(max_passes=100, max_wait_s=10.0))
    rig.waiting.append("5 big")
    rig.waiting.append("a")
    rig.now = 9.9
    rig.free(1)
    rig.waiting.append("b")
    rig.now = 10.0
    rig.free(1)
    assert rig.admitted == ["a"]
    assert list(rig.waiting) == ["5 big", "b"]


def test_one_that_waits_for_something_of_its_own_stops_nobody() -> None:
    rig = Rig(3)
    rig.waiting.append("held")
    rig.waiting.append("a")
    rig.waiting.append("b")
    assert rig.admitted == ["a", "b"]
    assert rig.num_bypasses == 0


def test_a_group_that_has_all_it_may_have_stops_nobody_else_however_many_of_it_wait() -> None:
    rig = Rig(0)
    rig.waiting = WaitingQueue(rig.admit, lambda: rig.now, STRICT, group=lambda item: item.endswith("of p"))
    for number in range(2 * MAX_IN_VAIN):
        rig.waiting.append(f"full {number} of p")
    for name in ("small of p", "a", "b"):
        rig.waiting.append(name)
    rig.free(3)
    assert rig.admitted == ["a", "b"]
    assert rig.num_bypasses == 0


def test_everybody_for_whom_there_is_room_is_admitted_at_once() -> None:
    rig = Rig(0)
    for number in range(3 * MAX_IN_VAIN):
        rig.waiting.append(f"number {number}")
    rig.free(3 * MAX_IN_VAIN)
    assert len(rig.admitted) == 3 * MAX_IN_VAIN


@pytest.mark.parametrize("num_held", [MAX_IN_VAIN - 1, MAX_IN_VAIN])
def test_so_many_are_tried_in_vain_and_no_more(num_held: int) -> None:
    rig = Rig(1)
    for number in range(num_held):
        rig.waiting.append(f"held {number}")
    rig.waiting.append("a")
    assert rig.admitted == (["a"] if num_held < MAX_IN_VAIN else [])
