"""UI-TARS-2 (arXiv 2509.02544)."""
