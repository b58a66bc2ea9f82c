"""What fine-tuning tests in the model's environment share with those of the core: its settings and its fixtures."""

from tests.model.conftest import policy, ranks, renderer

__all__ = ["policy", "ranks", "renderer"]
