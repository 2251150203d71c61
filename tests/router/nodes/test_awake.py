from twostep.router.nodes.awake import MAX_GAP_S, awake_clock
from twostep.tests.handoff.clock import ManualClock


async def test_what_passes_while_the_router_is_stopped_is_held_against_no_node() -> None:
    below = ManualClock()
    async with awake_clock(below) as clock:
        below.advance(0.5)
        assert clock() == 0.5
        below.advance(100.0)
        assert clock() == MAX_GAP_S
