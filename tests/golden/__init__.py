"""Golden logs: each mechanism of the engine as one stored log, in the form in which readers get it."""
