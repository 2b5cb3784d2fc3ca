"""What the library promises, a page for each promise: `help("actors.promises.delivery")` and so on.

- `delivery`: how often, in which order, one at a time, and what becomes of the rest
- `backpressure`: what happens when messages come faster than they are handled
- `asking`: how a question ends, always
- `supervision`: what happens when an actor fails
- `stopping`: how an actor, and a system, ends
- `timeouts`: everything that has to do with time, in one table

The modules hold nothing but their text. Every block of code on them is run by the tests.
"""
