"""What takes a run's data elsewhere. It only reads the log, and nothing may depend on it."""
