"""DART's data manager as pure code: which tasks, how many rollouts, how long, which groups and steps to train on.

Four reducers (difficulty, budget, dispatch, groups), each ``apply(state, record) -> (state, decisions)``, and the
formulas they rest on. No I/O, no clock (time comes with the records), no global randomness (only hashes of names).
"""
