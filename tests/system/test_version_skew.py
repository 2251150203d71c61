"""A router serves on nodes of the release before and of the one after, and answers as ever."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from twostep.tests.chaos.plan import Plan
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.town import town
from twostep.tests.proto.skew import Rewrite, as_released, peer_of_another_version, with_additions

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("rewrite", [as_released, with_additions], ids=["the release before", "the release after"])
async def test_a_router_and_nodes_of_neighbouring_releases_serve_together(tmp_path: Path, rewrite: Rewrite) -> None:
    async with town(Plan(tmp_path, num_prefill=1, num_decode=1)) as here, AsyncExitStack() as proxies:
        for node in here.nodes:
            other = peer_of_another_version(node.addresses["grpc"], rewrite)
            node.addresses["grpc"] = await proxies.enter_async_context(other)
        [router] = Plan(tmp_path, num_prefill=1, num_decode=1, each={"r0": {"router_id": "other"}}).router_programs(
            here.prefill, here.decode
        )
        here.routers.append(router)
        await here.routers[0].kill()
        await router.restart()
        here.clients[0].base_url = f"http://{router.addresses['http']}"
        await here.settled()
        await here.answers_rightly([Question(number) for number in range(4)])
