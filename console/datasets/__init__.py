"""Episodes as data sets: export, import and demonstrations."""
