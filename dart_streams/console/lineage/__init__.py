"""Where the time of a request went, and what each id was made of."""
