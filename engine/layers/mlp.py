"""The gated feed-forward block: down(activation(gate(x)) * up(x))."""

from collections.abc import Callable

from torch import Tensor, nn

from twostep.engine.kernels.reference import silu_and_multiply


class GatedMLP(nn.Module):
    """Gate and up projections are one matrix: one multiplication instead of two.

    `activate` takes [..., 2 * inner_dim], gate before up, to [..., inner_dim].
    """

    def __init__(
        self, dim: int, inner_dim: int, *, bias: bool = False, activate: Callable[[Tensor], Tensor] = silu_and_multiply
    ) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(dim, 2 * inner_dim, bias=bias)
        self.down_proj = nn.Linear(inner_dim, dim, bias=bias)
        self.activate = activate

    def forward(self, hidden: Tensor) -> Tensor:
        down: Tensor = self.down_proj(self.activate(self.gate_up_proj(hidden)))
        return down
