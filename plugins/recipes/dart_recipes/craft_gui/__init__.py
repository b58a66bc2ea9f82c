"""CRAFT-GUI (arXiv 2508.11360)."""
