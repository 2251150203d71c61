"""Lets the GPU's benchmark run where pydantic is not installed and nothing can be: configurations are made, and not checked."""

import dataclasses
import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any


def stand_in_for_pydantic() -> None:
    """Put a module that does nothing in pydantic's place, unless it is there. To be called before ours are imported."""
    with suppress(ModuleNotFoundError):
        import_module("pydantic")
        return
    module, inner = ModuleType("pydantic"), ModuleType("pydantic.dataclasses")
    for name in ("ConfigDict", "Field", "TypeAdapter"):
        setattr(module, name, lambda *_, **__: None)
    module.ValidationError = type("ValidationError", (ValueError,), {})  # type: ignore[attr-defined]
    inner.dataclass = _dataclass  # type: ignore[attr-defined]
    sys.modules |= {"pydantic": module, "pydantic.dataclasses": inner}


def _dataclass(*, config: object, **options: Any) -> Any:
    del config
    return dataclasses.dataclass(**options)
