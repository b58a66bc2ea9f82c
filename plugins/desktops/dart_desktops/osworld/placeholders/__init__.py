"""Placeholders for published files, with which the machinery is checked where those are missing.

The modules run in ``.venv/osworld``, whose libraries write the documents, and import nothing of the project but each
other. ``dart_desktops.osworld.placeholder_mirror`` asks for files by lines of JSON.
"""
