"""DART's own settings (arXiv 2509.23866)."""
