"""The request pipeline: a request in natural language becomes an ordinary run (page 004)."""
