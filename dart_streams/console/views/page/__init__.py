"""The live web page of a run: a read-only server of views on the run's one fold, and the page's own scripts.

A source (live topics with the store, or a bundle) keeps the fold; each view is a pure function of it; the server
answers GET only. Nothing here writes to the bus or to the store: there is no such code.
"""
