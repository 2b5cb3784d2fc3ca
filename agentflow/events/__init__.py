"""Events: what they are (`catalogue`, `envelope`), where they are kept (`EventLog`), how they are followed (`Hub`).

The catalogue and the envelope are plain values that the engine may use; everything else here does I/O.
"""
