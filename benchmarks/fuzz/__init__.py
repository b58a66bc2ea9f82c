"""Fuzzing of what others write: bundles, records, saved documents, servers' answers and requests to the page.

A process of its own plays mutated samples of a surface. A finding is a sample with which the product raises an error
that it does not declare, computes for more than a second, takes more than 200 MB, or writes outside its folder.
"""
