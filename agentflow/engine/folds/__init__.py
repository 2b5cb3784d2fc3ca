"""`evolve` by families of events; each module has a table FOLDS of event class to function."""
