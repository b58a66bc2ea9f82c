"""Sandboxed desktops for clients elsewhere: each lease is a fresh one, which serves OSWorld's HTTP contract."""
