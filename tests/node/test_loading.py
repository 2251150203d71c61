import pytest

from twostep.core.errors import NodeUnavailable
from twostep.node.loading import Loading


def test_what_is_not_loaded_yet_is_unavailable_and_says_why() -> None:
    loading = Loading[int]("the model is being loaded")
    with pytest.raises(NodeUnavailable, match="the model is being loaded"):
        loading.get()
    loading.put(3)
    assert loading.get() == 3


def test_what_is_being_loaded_now_is_told() -> None:
    loading = Loading[int]("the model is being loaded")
    loading.tell("loading weights: 1.0 of 16.0 GB")
    with pytest.raises(NodeUnavailable, match=r"loading weights: 1.0 of 16.0 GB"):
        loading.get()
