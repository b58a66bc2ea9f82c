"""DigiRL (arXiv 2406.11896)."""
