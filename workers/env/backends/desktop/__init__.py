"""Real desktops without a virtual machine: a process tree in a sandbox each, with real applications."""
