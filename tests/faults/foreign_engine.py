"""llama.cpp's server, as the package of the embedded engine has it, with a chat template for functions.

`python foreign_engine.py MODEL` serves on a free port of 127.0.0.1 and prints its address; it ends when
standard input does. The model of the tests was never taught to call functions: the template shows it three
such calls, and the server's grammar does the rest.
"""

import os
import sys
from typing import Any

import xllamacpp

TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\nYou call functions.\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set answers = message.role == 'tool' and tools | length == 1 %}
    {%- if loop.last and tools and messages[0].role == 'system' and not answers %}
        {%- set wanted = tools[-1] if message.role == 'tool' else tools[0] %}
        {%- for text in ['One.', 'Two.', 'Three.'] %}
            {{- '<|im_start|>user\\nCall a function: ' + text + '<|im_end|>\\n<|im_start|>assistant\\n' }}
            {{- '<tool_call>\\n{"name": "' + wanted.function.name + '", "arguments": {' }}
            {{- '}}\\n</tool_call><|im_end|>\\n' }}
        {%- endfor %}
    {%- endif %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n' + ('What is the capital of France?' if answers else 'Call a function: ') }}
        {{- message.content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def main() -> None:
    """Serve until standard input ends."""
    params: Any = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.model_alias = {"m"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 1024
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.chat_template = TEMPLATE
    params.ui = False
    params.verbosity = 1
    ready = os.dup(1)
    os.dup2(2, 1)  # the engine logs to standard output too
    server: Any = xllamacpp.Server(params)
    os.write(ready, f"{server.listening_address}\n".encode())
    while os.read(0, 4096):
        pass
    os._exit(0)


main()
