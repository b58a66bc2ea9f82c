"""Faults during this process's evaluation: OSWorld's code may catch them and score 0."""

recorded: list[str] = []
