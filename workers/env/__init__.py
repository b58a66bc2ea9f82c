"""Environment workers, which play episodes of tasks concurrently; each step is an event.

``dart_streams.episodes`` decides, ``episode_runner`` executes, ``policy_client`` requests actions, and a backend in
``backends`` shows screens.
"""
