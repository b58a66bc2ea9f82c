"""Machines that serve OSWorld's HTTP contract (a virtual machine, a container, a desktop of ours), as environments.

Nothing of OSWorld's own code is imported here; it may be at the other end of a connection.
"""
