"""The attention kernels equal their twins: by type, head shape, block size, and lengths that fit no tile."""

import pytest
import torch

from twostep.engine.kernels.gpu.decode_attention import num_splits
from twostep.engine.kernels.gpu.kernel_set import TritonKernels
from twostep.engine.kernels.gpu.launches import Launch
from twostep.engine.kernels.reference import Score
from twostep.engine.kernels.twins import TorchKernels
from twostep.tests.engine.gpu.scenes import TOLERANCE, Heads, Scene, scene

PLAIN, SCALED, CAPPED = Score(), Score(scale=0.3), Score(cap=2.0)
TYPES = [torch.float32, torch.bfloat16]
WIDTHS = [Heads(4, 2, dim) for dim in (64, 80, 96, 128, 256)]
GROUPS = [*(Heads(2 * group, 2, 64) for group in (1, 3, 4, 8)), Heads(20, 1, 64)]
SHAPES = [*((heads, dtype) for heads in WIDTHS for dtype in TYPES), *((heads, torch.float32) for heads in GROUPS)]
LENGTHS = [1, 0, 37, 16, 70]


def check_decodes(here: Scene, score: Score, window: int | None) -> None:
    heads, num_sequences = here.heads, len(here.num_keys)
    query, found, expected = here.query(num_sequences), here.out(num_sequences), here.out(num_sequences)
    ours, twin = TritonKernels(), TorchKernels()
    scratch = ours.decode_scratch(num_sequences, heads.num_heads, heads.num_kv_heads, heads.dim, query.device)
    how = {"score": score, "window": window}
    ours.attend_decodes(query, here.pool, here.tables, here.num_keys, found, scratch, **how)
    twin.attend_decodes(query, here.pool, here.tables, here.num_keys, expected, scratch, **how)
    torch.testing.assert_close(found, expected, **TOLERANCE[query.dtype])


def check_chunks(here: Scene, chunks: list[int], score: Score, window: int | None, num_padding: int = 3) -> None:
    """Let the last `chunks` tokens of each context attend; some rows follow that belong to nobody."""
    starts = torch.tensor([0, *chunks]).cumsum(0).to(here.num_keys)
    num_rows = sum(chunks) + num_padding
    query, found, expected = here.query(num_rows), here.out(num_rows), here.out(num_rows)
    for kernels, out in ((TritonKernels(), found), (TorchKernels(), expected)):
        kernels.attend_chunks(query, here.pool, here.tables, starts, here.num_keys, out, score=score, window=window)
    torch.testing.assert_close(found, expected, equal_nan=True, **TOLERANCE[query.dtype])
    assert found[sum(chunks) :].isnan().all()
    assert not found[: sum(chunks)].isnan().any()


@pytest.mark.parametrize(("heads", "dtype"), SHAPES)
def test_decodes_attend_as_their_twin(heads: Heads, dtype: torch.dtype, device: torch.device) -> None:
    check_decodes(scene(heads, LENGTHS, block_tokens=32, dtype=dtype, device=device), PLAIN, None)


@pytest.mark.parametrize("block_tokens", [16, 64])
@pytest.mark.parametrize(("score", "window"), [(SCALED, None), (CAPPED, None), (PLAIN, 20), (CAPPED, 33), (PLAIN, 1)])
def test_decodes_know_block_sizes_scores_and_windows(
    block_tokens: int, score: Score, window: int | None, device: torch.device
) -> None:
    here = scene(Heads(4, 2, 64), LENGTHS, block_tokens=block_tokens, dtype=torch.float32, device=device)
    check_decodes(here, score, window)


@pytest.mark.parametrize("num_sequences", [1, 2, 9])
def test_contexts_are_split_alike_whatever_their_lengths(num_sequences: int, device: torch.device) -> None:
    lengths = [250, 0, 31, 33, 17, 1, 64, 65, 9][:num_sequences]
    check_decodes(scene(Heads(2, 2, 64), lengths, block_tokens=32, dtype=torch.float32, device=device), PLAIN, None)


def test_a_batch_is_split_until_it_fills_the_device() -> None:
    launch = Launch(programs=1056)
    assert [num_splits(launch, count, 8) for count in (1, 2, 16, 64, 256)] == [64, 64, 16, 4, 1]


def test_a_scratch_made_for_fewer_sequences_is_refused(device: torch.device) -> None:
    here = scene(Heads(2, 2, 64), [5, 5, 5], block_tokens=32, dtype=torch.float32, device=device)
    kernels = TritonKernels()
    scratch = kernels.decode_scratch(1, 2, 2, 64, device)
    query, out = here.query(3000), here.out(3000)
    tables, num_keys = here.tables[:1].expand(3000, -1).contiguous(), here.num_keys[:1].expand(3000).contiguous()
    with pytest.raises(ValueError, match=r"^scratch of \d+ places: 3000 sequences in \d+ splits need more$"):
        kernels.attend_decodes(query, here.pool, tables, num_keys, out, scratch, score=PLAIN, window=None)


@pytest.mark.parametrize(("heads", "dtype"), SHAPES)
def test_chunks_attend_as_their_twin(heads: Heads, dtype: torch.dtype, device: torch.device) -> None:
    here = scene(heads, [19, 18, 5, 0, 40], block_tokens=32, dtype=dtype, device=device)
    check_chunks(here, [19, 1, 3, 0, 9], PLAIN, None)


@pytest.mark.parametrize("block_tokens", [16, 64])
@pytest.mark.parametrize(("score", "window"), [(SCALED, None), (CAPPED, None), (PLAIN, 20), (CAPPED, 33), (PLAIN, 1)])
def test_chunks_know_block_sizes_scores_and_windows(
    block_tokens: int, score: Score, window: int | None, device: torch.device
) -> None:
    here = scene(Heads(4, 2, 64), [70, 21], block_tokens=block_tokens, dtype=torch.float32, device=device)
    check_chunks(here, [11, 21], score, window)


def test_a_chunk_attends_alike_however_it_is_cut(device: torch.device) -> None:
    here = scene(Heads(2, 1, 64), [60], block_tokens=32, dtype=torch.float32, device=device)
    query, whole, parts = here.query(60), here.out(60), here.out(60)
    kernels, rest = TritonKernels(), {"score": PLAIN, "window": None}
    starts = torch.tensor([0, 60], dtype=torch.int32, device=device)
    kernels.attend_chunks(query, here.pool, here.tables, starts, here.num_keys, whole, **rest)
    for first, last in ((0, 7), (7, 40), (40, 60)):
        starts = torch.tensor([0, last - first], dtype=torch.int32, device=device)
        ends = torch.tensor([last], dtype=torch.int32, device=device)
        kernels.attend_chunks(query[first:last], here.pool, here.tables, starts, ends, parts[first:last], **rest)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("block_tokens", [16, 32, 64])
@pytest.mark.parametrize("heads", [*WIDTHS, *GROUPS])
@pytest.mark.parametrize(("score", "window"), [(PLAIN, None), (CAPPED, None), (PLAIN, 50)])
def test_every_shape_of_context(
    heads: Heads, block_tokens: int, dtype: torch.dtype, score: Score, window: int | None, device: torch.device
) -> None:
    here = scene(heads, [200, 1, 0, 77, 64], block_tokens=block_tokens, dtype=dtype, device=device)
    check_decodes(here, score, window)
    check_chunks(here, [33, 1, 0, 77, 0], score, window)
