"""MCP both ways: tools of MCP servers beside the actions of any backend, and a run's records as tools of a server."""
