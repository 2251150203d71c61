import pytest

from twostep.core.errors import ConfigError, NodeUnavailable
from twostep.node.loading import Loading, call_in_thread


def test_what_is_not_loaded_yet_is_unavailable_and_says_why() -> None:
    loading = Loading[int]("the model is being loaded")
    with pytest.raises(NodeUnavailable, match="the model is being loaded"):
        loading.get()
    loading.put(3)
    assert loading.get() == 3


async def test_a_call_in_a_thread_returns_or_raises_what_it_would_here() -> None:
    def fails() -> int:
        raise ConfigError("no such model")

    assert await call_in_thread(lambda: 3, name="test") == 3
    with pytest.raises(ConfigError, match="no such model"):
        await call_in_thread(fails, name="test")
