"""Environment workers: episodes of tasks, many at a time, each step an event.

``episode`` decides, ``player`` does; ``intake`` takes orders, ``replies`` waits for actions; a backend shows screens.
"""
