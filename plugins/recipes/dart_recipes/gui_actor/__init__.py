"""GUI-Actor (arXiv 2506.03143); ``patches`` and ``screens`` alone need no ``.venv/model``."""
