"""Tools of MCP servers beside the actions of any backend. Only this folder imports the package ``mcp``."""
