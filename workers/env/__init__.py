"""Environment workers: episodes of tasks, many at a time, each step an event.

``dart_streams.episodes`` decides, ``episode_runner`` executes, ``policy_client`` requests actions. A backend in
``backends`` shows screens.
"""
