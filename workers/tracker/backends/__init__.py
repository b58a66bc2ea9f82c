"""One module a tool: a run there, written through the tool's own library (environment .venv/data)."""
