"""Measurements of recipes, each a program that prints JSON."""
