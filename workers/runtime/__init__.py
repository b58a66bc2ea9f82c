"""What every worker process shares: its lifecycle and the ordered-commit consumer.

Knows no topic and no kind of worker.
"""
