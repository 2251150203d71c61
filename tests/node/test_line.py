from twostep.node.line import Line


class Desk:
    """Admits while it has places, and remembers whom."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.admitted: list[str] = []
        self.now = 0.0
        self.line: Line[str] = Line(self.admit, lambda: self.now)

    def admit(self, item: str) -> bool:
        if self.places == 0:
            return False
        self.places -= 1
        self.admitted.append(item)
        return True


def test_who_finds_a_place_never_waits() -> None:
    desk = Desk(1)
    desk.line.join("a")
    assert desk.admitted == ["a"]
    assert list(desk.line) == []


def test_places_go_to_those_who_came_first() -> None:
    desk = Desk(0)
    for name in ("a", "b", "c"):
        desk.line.join(name)
    desk.places = 2
    desk.line.advance()
    assert desk.admitted == ["a", "b"]
    assert list(desk.line) == ["c"]


def test_who_leaves_the_line_is_not_admitted_and_those_behind_move_up() -> None:
    desk = Desk(0)
    for name in ("a", "b"):
        desk.line.join(name)
    desk.places = 1
    assert desk.line.leave("a")
    assert not desk.line.leave("a")
    assert desk.admitted == ["b"]


def test_who_was_admitted_before_stands_first_again() -> None:
    desk = Desk(0)
    desk.line.join("a")
    desk.line.rejoin("b")
    assert list(desk.line) == ["b", "a"]


def test_an_item_that_leaves_while_it_is_admitted_takes_nobody_with_it() -> None:
    served: list[str] = []

    def admit(item: str) -> bool:
        line.leave(item)
        served.append(item)
        return len(served) < 2

    line: Line[str] = Line(lambda _: False, lambda: 0.0)
    line.join("a")
    line.join("b")
    line.join("c")
    line._try_admit = admit
    line.advance()
    assert served == ["a", "b"]


def test_the_estimate_follows_the_pace_of_admissions() -> None:
    desk = Desk(0)
    for name in ("a", "b", "c"):
        desk.line.join(name)
    assert desk.line.estimate_s(1) == 0.0
    for _ in range(2):
        desk.now += 5.0
        desk.places = 1
        desk.line.advance()
    assert desk.line.estimate_s(0) == 1.0
    assert desk.line.estimate_s(1) == 2.0
