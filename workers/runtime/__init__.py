"""What every worker process shares: its lifecycle and its clock.

Knows no topic and no kind of worker.
"""
