"""The environments that the project brings, and the registry that opens one by name."""
