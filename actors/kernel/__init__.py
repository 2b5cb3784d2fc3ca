"""Kernel that runs actors; nothing here is part of the interface.

Read upwards: `wheel` (deadlines of asks), `scheduler` (run queue, tasks, door for threads), `cell` (state
and mailbox of one actor), `routines` (code that may have to wait), `orders` (stop, drain, kill, fail: bits
only), `owned` and `answers` (timers, pipes, deferred replies), `life` (start and end), `fate` (failures and
restarts), `turn` (serving messages), `spawning`.
"""
