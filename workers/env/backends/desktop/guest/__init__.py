"""What runs inside a desktop's sandbox, by the system's Python: it imports nothing of the rest of the project.

One process starts the X server, the session's bus, the window manager and the task's application, carries out input,
takes screens, and answers the environment worker over a socket that it was given.
"""
