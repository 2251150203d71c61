"""Decides whether the CPU kernels compute a model, and with which instructions."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twostep.core.errors import ConfigError
from twostep.engine.config import EngineConfig
from twostep.engine.kernels.cpu.compiler import compiled_kernels
from twostep.engine.kernels.cpu.instruction_set import InstructionSet, available
from twostep.engine.kernels.cpu.specs import covered
from twostep.engine.models.causal_lm import CausalLM
from twostep.engine.models.decoder import Decoder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels in `library`, for a model that they cover."""

    name: str
    library: Path
    model: Decoder

    @property
    def description(self) -> str:
        return self.name

    @property
    def num_copied(self) -> int:
        """How many numbers packing holds twice: a head that is the embedding too, whose rows are still looked up."""
        return self.model.embed_tokens.weight.numel() if self.model.lm_head is None else 0


@dataclass(frozen=True, slots=True)
class NoKernels:
    """torch computes; `reason` says why where that is not what was asked for."""

    reason: str = ""
    num_copied: int = 0

    @property
    def description(self) -> str:
        return f"torch ({self.reason})" if self.reason else "torch"


def choose_kernels(model: CausalLM, config: EngineConfig, cache: Path) -> Kernels | NoKernels:
    """Return the best kernels, or those that `engine.kernels` names, compiled now unless they lie in `cache`.

    Where `auto` finds none, torch is to compute, which is logged. Raises ConfigError when those named cannot be had.
    """
    if config.kernels == "torch":
        return NoKernels()
    try:
        instructions = _instructions(config.kernels, available())
        decoder = covered(model)
        if decoder is None:
            raise ConfigError("the CPU kernels do not cover this model")
        return Kernels(instructions.name, compiled_kernels(instructions, config.dtype, cache), decoder)
    except ConfigError as cause:
        if config.kernels != "auto":
            raise
        log.warning("torch computes, several times slower than the CPU kernels would", extra={"reason": str(cause)})
        return NoKernels(str(cause))


def _instructions(wanted: str, found: Sequence[InstructionSet]) -> InstructionSet:
    for each in found:
        if wanted in ("auto", each.name):
            return each
    raise ConfigError(f"engine.kernels = {wanted}: this processor has only {', '.join(each.name for each in found)}")
