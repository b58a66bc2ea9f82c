"""The server inside a desktop's sandbox, for the system's Python; it imports nothing of the rest of the project.

One process starts the X server, the bus, the window manager and the task's application. It performs input, takes
screens, and serves the environment worker on a given socket.
"""
