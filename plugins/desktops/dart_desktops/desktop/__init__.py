"""The ``desktop`` backend: real applications in sandboxes, each a process tree without a virtual machine."""
