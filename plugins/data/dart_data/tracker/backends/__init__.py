"""One module per tool: a run of the tool, written by its own library (environment .venv/data)."""
