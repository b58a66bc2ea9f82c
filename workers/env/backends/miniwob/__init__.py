"""The ``miniwob`` backend: MiniWoB++ pages in headless Chromium, driven by DevTools messages over a pipe."""
