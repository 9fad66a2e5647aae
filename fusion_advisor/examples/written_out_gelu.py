"""The demo script: a transformer MLP that writes the tanh-GELU out, as many models do."""

import math

import torch
from torch import nn


class MLP(nn.Module):
    """Two linear layers with eight elementwise ops between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * h**3)))
        out: torch.Tensor = self.down(h)
        return out


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(*(MLP(512) for _ in range(3))).eval()
    with torch.no_grad():
        model(torch.randn(1024, 512))
