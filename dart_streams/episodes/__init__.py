"""The life of an episode and its summary: values only. No bus, no store, no clock."""
