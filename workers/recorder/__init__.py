"""The recorder: writes observations to the store, then announces each finished trajectory.

It is the only writer of step rows. The summary of a trajectory is a pure function in ``episodes.trajectory_summary``.
"""
