"""Dead letters redriven, and the store rebuilt from the log."""
