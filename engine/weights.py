"""Loads a model's parameters from the safetensors files of its folder."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from twostep.core.errors import ConfigError
from twostep.engine.model_folder import ModelFolder
from twostep.engine.models.causal_lm import CausalLM
from twostep.engine.models.registry import build_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What weights and KV may be stored as, by the names of the configuration."""
OnBytes = Callable[[int], None]
FLOAT_BYTES = 4
LOGITS_COPIES = 3
"""Logits, and what drawing makes of them."""


def ignore_bytes(num_bytes: int) -> None:
    """Nobody waits for these weights."""
    del num_bytes


def empty_model(folder: ModelFolder) -> CausalLM:
    """Build the folder's model without memory for its weights. Raises ConfigError when config.json is not understood."""
    with torch.device("meta"):
        return build_model(folder.config)


def load_weights(
    model: CausalLM, folder: ModelFolder, dtype: torch.dtype, device: torch.device, on_bytes: OnBytes = ignore_bytes
) -> None:
    """Give an empty model its weights, stored as `dtype` on `device`; `on_bytes` hears of each parameter's size.

    What lies in a file just as it is wanted is not copied: it stays a view of the file's pages; see `own`.

    Raises ConfigError when a tensor is missing, has another shape than config.json says, or has no place in the model: a
    tensor that is left out would change every answer.
    """
    unread = set(folder.tensor_files) - model.ignored
    with _open_files(folder) as files:
        for name, parameter in list(model.as_module().named_parameters()):
            sources = [_resolve(source, folder) for source in source_names(name, model.packed)]
            loaded = _joined([_read(source, files, folder) for source in sources])
            if loaded.shape != parameter.shape:
                shapes = f"{list(loaded.shape)}, config.json makes it {list(parameter.shape)}"
                raise ConfigError(f"model folder {folder.path}: {' + '.join(sources)} has the shape {shapes}")
            stored = loaded.to(device=device, dtype=dtype)
            _assign(model.as_module(), name, stored)
            on_bytes(stored.nbytes)
            unread.difference_update(sources)
    _refuse_unread({name for name in unread if not name.endswith("rotary_emb.inv_freq")}, folder)


def own(module: nn.Module) -> None:
    """Copy the parameters that are views of a file's pages: who writes to the file must not change what is served."""
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()


def workspace_bytes(model: CausalLM, token_budget: int, max_batch: int) -> int:
    """Estimate what a step computes with beside weights and KV: what goes in and out of a layer, and the logits; in float32."""
    by_layer: Counter[str] = Counter()
    for name, module in model.as_module().named_modules():
        if isinstance(module, nn.Linear) and name.startswith("layers."):
            by_layer[name.split(".")[1]] += module.in_features + module.out_features
    widest = max(by_layer.values(), default=0)
    return FLOAT_BYTES * (token_budget * widest + LOGITS_COPIES * max_batch * model.facts.vocab_size)


def source_names(name: str, packed: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names of the folder's tensors that make up parameter `name`, stacked by rows in this order."""
    *path, module, kind = name.split(".")
    return [".".join((*path, part, kind)) for part in packed.get(module, (module,))]


def weight_bytes(model: CausalLM, dtype: torch.dtype) -> int:
    """Return the size of the model's parameters, stored as `dtype`."""
    return dtype.itemsize * sum(parameter.numel() for parameter in model.as_module().parameters())


def _resolve(name: str, folder: ModelFolder) -> str:
    for candidate in (f"model.{name}", name):
        if candidate in folder.tensor_files:
            return candidate
    raise ConfigError(f"model folder {folder.path}: tensor model.{name} is missing")


@contextmanager
def _open_files(folder: ModelFolder) -> Iterator[dict[Any, Any]]:
    with ExitStack() as stack:
        try:
            yield {file: stack.enter_context(safe_open(file, framework="pt")) for file in folder.weight_files}
        except (SafetensorError, OSError) as cause:
            raise ConfigError(f"model folder {folder.path}: its weights cannot be read: {cause}") from cause


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _read(name: str, files: Mapping[Any, Any], folder: ModelFolder) -> Tensor:
    tensor: Tensor = files[folder.tensor_files[name]].get_tensor(name)
    return tensor


def _assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))


def _refuse_unread(names: set[str], folder: ModelFolder) -> None:
    if names:
        some = ", ".join(sorted(names)[:3])
        raise ConfigError(f"model folder {folder.path}: {len(names)} tensors have no place in this model, such as {some}")
