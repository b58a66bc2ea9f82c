"""The ``miniwob`` backend: MiniWoB++ pages in headless Chromium, driven by raw DevTools messages over a pipe.

Knows screens and actions only; no topic, no policy.
"""
