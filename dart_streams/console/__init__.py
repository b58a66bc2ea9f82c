"""All that starts a run, looks on and measures. It imports every other package; none but benchmarks imports it."""
