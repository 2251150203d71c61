from twostep.node.waiting_queue import WaitingQueue


class Rig:
    """Admits while it has places, and remembers whom."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.admitted: list[str] = []
        self.now = 0.0
        self.waiting: WaitingQueue[str] = WaitingQueue(self.admit, lambda: self.now)

    def admit(self, item: str) -> bool:
        if self.places == 0:
            return False
        self.places -= 1
        self.admitted.append(item)
        return True


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


def test_an_item_that_leaves_while_it_is_admitted_takes_nobody_with_it() -> None:
    served: list[str] = []

    def admit(item: str) -> bool:
        waiting.remove(item)
        served.append(item)
        return len(served) < 2

    waiting: WaitingQueue[str] = WaitingQueue(lambda _: False, lambda: 0.0)
    waiting.append("a")
    waiting.append("b")
    waiting.append("c")
    waiting._try_admit = admit
    waiting.advance()
    assert served == ["a", "b"]


def test_the_estimate_follows_the_pace_of_admissions() -> None:
    rig = Rig(0)
    for name in ("a", "b", "c"):
        rig.waiting.append(name)
    assert rig.waiting.estimate_s(1) == 0.0
    for _ in range(2):
        rig.now += 5.0
        rig.places = 1
        rig.waiting.advance()
    assert rig.waiting.estimate_s(0) == 1.0
    assert rig.waiting.estimate_s(1) == 2.0
