"""The memory and the number of processes that a deployment needs."""
