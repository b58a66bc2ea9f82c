"""GiGPO (arXiv 2505.10978)."""
