"""Copies metrics and samples to a tool, whose library is imported in its module of ``backends`` alone."""
