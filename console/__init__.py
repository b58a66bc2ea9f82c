"""All that starts a run, looks on and measures."""
