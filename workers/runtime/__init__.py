"""Lifecycle and ordered-commit consumer of every worker process; independent of topics and kinds of workers."""
