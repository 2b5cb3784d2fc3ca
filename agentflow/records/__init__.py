"""What the API, the command line, the client and the dashboard show of runs.

`runs`, `executions`, `requests`, `answers`, `upkeep` are Structs; `projection` and `history`
make them from events, `read_model` from a log; `comparison` says where two runs part; `commands` says what
can be told to a run. Nothing here decides, and nothing imports the engine, the runtime or actors.
"""
