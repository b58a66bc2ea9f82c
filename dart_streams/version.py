"""The version of this package. Images have its code without an installed package, so no metadata to ask."""

VERSION = "0.2.0"
