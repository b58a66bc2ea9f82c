"""Environments of other projects by this one's protocol: Gymnasium (BrowserGym), OpenEnv, AndroidWorld's server.

Each is an entry point of this package, as a backend of any other package is; nothing here imports theirs.
"""
