"""The gated feed-forward block: down(silu(gate(x)) * up(x))."""

from torch import Tensor, nn

from twostep.engine.kernels.reference import silu_and_multiply


class GatedMLP(nn.Module):
    """Gate and up projections are one matrix: one multiplication instead of two."""

    def __init__(self, dim: int, inner_dim: int, *, bias: bool) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(dim, 2 * inner_dim, bias=bias)
        self.down_proj = nn.Linear(inner_dim, dim, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        down: Tensor = self.down_proj(silu_and_multiply(self.gate_up_proj(hidden)))
        return down
