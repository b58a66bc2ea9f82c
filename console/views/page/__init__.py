"""The live web page of a run: a read-only server of views, and the page's scripts.

A source (live topics with the store, or a bundle) keeps the fold of a run; each view is a pure function of it. No
module here writes to the bus or to the store.
"""
