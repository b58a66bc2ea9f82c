"""Phones: real Android views in a process each, by Robolectric. ``android/`` has their applications in Java."""
