"""The evaluators' sidecar in OSWorld's own environment (``make osworld``), which scores each task in a process.

It imports only the standard library and OSWorld's package; ``dart_desktops.osworld.sidecar`` starts it.
"""
