"""The recorder: writes observations to the store, then announces the finished trajectory.

The only writer of step rows. What a trajectory's summary is, is a pure function in ``trajectory_summary``.
"""
