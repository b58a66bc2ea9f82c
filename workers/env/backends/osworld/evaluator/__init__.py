"""What runs in OSWorld's own environment (``make osworld``), beside its package, and scores one task a process.

It imports the standard library and that package only; ``workers.env.backends.osworld.sidecar`` starts it.
"""
