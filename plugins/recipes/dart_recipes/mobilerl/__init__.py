"""MobileRL (arXiv 2509.18119)."""
