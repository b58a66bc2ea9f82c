"""Sandboxed desktops, OSWorld's tasks on machines, and the server that leases desktops."""
