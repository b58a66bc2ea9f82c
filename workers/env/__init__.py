"""Environment workers: episodes of tasks, many at a time, each step an event.

``episode`` decides, ``episode_runner`` executes; ``policy_client`` requests actions; a backend shows screens.
"""
