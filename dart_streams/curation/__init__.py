"""DART's data manager as pure code: task choice, rollout numbers, step limits, and groups and steps to train on.

Four reducers (difficulty, budget, dispatch, groups), each ``apply(state, record) -> (state, decisions)``, and their
formulas. No I/O, no clock (records carry time), no global randomness (only hashes of names).
"""
