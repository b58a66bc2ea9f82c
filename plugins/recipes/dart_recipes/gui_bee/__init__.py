"""GUI-Bee (arXiv 2501.13896): exploration of unknown environments."""
