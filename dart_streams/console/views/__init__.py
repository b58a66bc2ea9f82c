"""A run shown: the terminal display, the web page and the report. Pure renderings of what ``runs`` has computed.

Nothing here starts or changes anything but the report's own files.
"""
