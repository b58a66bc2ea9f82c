"""Weights of a linear layer and of an adapter for it; a process that makes them needs torch alone."""

import torch


def layer(seed: int, outputs: int, inputs: int, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weight, down and up: shapes (outputs, inputs), (rank, inputs) and (outputs, rank), float32."""
    random = torch.Generator().manual_seed(seed)
    shapes = [(outputs, inputs), (rank, inputs), (outputs, rank)]  # torch.randn depends on the instruction set
    weight, down, up = ((torch.rand(shape, generator=random) - 0.5) * 10 ** (seed % 5 - 2) for shape in shapes)
    return weight, down, up
