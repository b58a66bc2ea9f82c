"""All that starts a run, looks on and measures. The core imports it by ``dart_streams.open`` alone."""
