"""The ``osworld`` backend: machines that serve OSWorld's HTTP API (virtual machines, containers, desktops of ours).

It imports none of OSWorld's code; only the evaluators' sidecar runs it.
"""
