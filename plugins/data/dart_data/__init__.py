"""What takes a run's data elsewhere, and brings demonstrations from there. No process of a circle depends on it."""
