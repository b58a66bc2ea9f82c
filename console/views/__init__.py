"""Displays of a run: the terminal, the web page and the report, as pure renderings of the results of ``runs``.

Only the report writes files, and no module here starts or changes a process.
"""
