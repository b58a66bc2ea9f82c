"""C3PO of Ring-lite: a constant number of tokens a step."""
