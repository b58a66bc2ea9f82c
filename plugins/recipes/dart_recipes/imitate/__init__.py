"""Self-imitation (arXiv 1806.05635)."""
