"""A run's history shown: the terminal display and the report. Pure renderings; what they show is computed from history.

Nothing here starts or changes anything but the report's own files.
"""
