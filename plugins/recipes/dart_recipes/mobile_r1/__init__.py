"""Mobile-R1 (arXiv 2506.20332)."""
