"""From any id to everything it came from and went into: what the log says, joined with the spans of the processes.

``facts`` and ``timeline`` read, ``walk``, ``chain`` and ``segments`` are pure.
"""
