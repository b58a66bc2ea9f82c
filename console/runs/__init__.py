"""A run from its log: its folder, its topics, the state folded from them, and the file of a bundle."""
