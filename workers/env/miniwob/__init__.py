"""The ``miniwob`` backend: MiniWoB++ pages in headless Chromium, driven by raw DevTools messages over a pipe."""
