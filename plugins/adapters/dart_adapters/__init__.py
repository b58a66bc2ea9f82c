"""Adapters for environments of other projects: Gymnasium (BrowserGym), OpenEnv, AndroidWorld's server; MCP both ways.

Each is an entry point of this package, like backends of other packages, and imports none of the other project's code.
"""
