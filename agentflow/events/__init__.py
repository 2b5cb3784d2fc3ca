"""Events: what they are (`catalogue`, `envelope`), where they are kept (`log`), how to follow them (`hub`).

The catalogue and the envelope are plain values that the engine may use; everything else here does I/O.
"""
