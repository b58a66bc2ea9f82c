"""An evaluator model as the judge of outcomes (arXiv 2404.06474, as in DigiRL, arXiv 2406.11896)."""
