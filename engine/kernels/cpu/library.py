"""The compiled kernels as Python sees them: the structures and functions of abi.h and abi.cpp."""

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any


class NormSpec(Structure):
    _fields_ = (("weights", c_void_p), ("eps", c_float))


class LinearSpec(Structure):
    _fields_ = (("weights", c_void_p), ("bias", c_void_p))


class RopeSpec(Structure):
    _fields_ = (("frequencies", c_void_p), ("half", c_int64), ("magnitude", c_float))


class LayerSpec(Structure):
    _fields_ = (
        *((name, NormSpec) for name in ("attention_in", "attention_out", "mlp_in", "mlp_out", "query", "key")),
        *((name, LinearSpec) for name in ("qkv", "out", "gate_up", "down")),
        ("rope", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("cap", c_float),
        ("activation", c_int32),
    )


class ModelSpec(Structure):
    _fields_ = (
        *(
            (name, c_int64)
            for name in ("num_threads", "dim", "num_heads", "num_kv_heads", "head_dim", "inner_dim", "vocab_size")
        ),
        ("embedding", c_void_p),
        ("embedding_scale", c_float),
        ("logit_cap", c_float),
        ("final_norm", NormSpec),
        ("ropes", POINTER(RopeSpec)),
        ("num_ropes", c_int64),
        ("kv", c_void_p),
        ("num_blocks", c_int64),
        ("block_tokens", c_int64),
    )


class ChunkSpec(Structure):
    _fields_ = (("start", c_int64), ("count", c_int64), ("first_table_entry", c_int64))


class StepSpec(Structure):
    _fields_ = (
        ("tokens", c_void_p),
        ("chunks", POINTER(ChunkSpec)),
        ("num_chunks", c_int64),
        ("tables", c_void_p),
        ("num_table_entries", c_int64),
    )


FUNCTIONS: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "may_multiply": (c_int32, []),
    "create": (c_void_p, [POINTER(ModelSpec)]),
    "free": (None, [c_void_p]),
    "add_layer": (c_int32, [c_void_p, POINTER(LayerSpec)]),
    "set_head": (c_int32, [c_void_p, c_void_p]),
    "begin": (c_int32, [c_void_p, POINTER(StepSpec)]),
    "run_layers": (None, [c_void_p, c_int64, c_int64]),
    "logits": (None, [c_void_p, c_void_p, c_int64, c_void_p]),
}
"""What each function returns and takes; see abi.cpp."""


def open_library(path: Path) -> ctypes.CDLL:
    """Return the library at `path` with its functions' types declared. Calls release Python's lock."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in FUNCTIONS.items():
        function = library[f"twostep_{name}"]
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library
