"""The version of this package. Code that is mounted beside an installed one has its own, so no metadata is asked."""

VERSION = "0.3.0"
