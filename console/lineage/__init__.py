"""Traces of requests, and the lineage of ids."""
