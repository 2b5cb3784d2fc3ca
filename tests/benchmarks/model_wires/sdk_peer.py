"""Reads streams with the provider's own library: `sdk_peer.py WIRE`, base64 lines in, JSON lines out.

Runs in the environment of the peers and imports nothing of ours.
"""

import base64
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    body = b""
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(Handler.body)))
        self.end_headers()
        self.wfile.write(Handler.body)

    def log_message(self, format, *args):
        pass


def chat(url):
    import openai

    client = openai.OpenAI(api_key="k", base_url=url + "/v1", max_retries=0)

    def read():
        with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "go"}]) as s:
            done = s.get_final_completion()
        choice, usage = done.choices[0], done.usage
        calls = [
            [c.id, c.function.name, json.loads(c.function.arguments or "{}")]
            for c in choice.message.tool_calls or ()
        ]
        counts = [usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens]
        return choice.message.content or "", calls, counts, choice.finish_reason

    return read


def responses(url):
    import openai

    client = openai.OpenAI(api_key="k", base_url=url + "/v1", max_retries=0)

    def read():
        for event in client.responses.create(model="m", input="go", stream=True):
            if event.type == "response.completed":
                done = event.response
        usage = done.usage
        calls = [
            [i.call_id, i.name, json.loads(i.arguments or "{}")]
            for i in done.output
            if i.type == "function_call"
        ]
        counts = [usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens]
        return done.output_text, calls, counts, done.status

    return read


def messages(url):
    import anthropic

    client = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)

    def read():
        asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]}
        with client.messages.stream(**asked) as s:
            done = s.get_final_message()
        text = "".join(block.text for block in done.content if block.type == "text")
        calls = [[b.id, b.name, b.input] for b in done.content if b.type == "tool_use"]
        usage = done.usage
        cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        counts = [usage.input_tokens + cached + written, usage.output_tokens, cached]
        return text, calls, counts, done.stop_reason

    return read


def gemini(url):
    from google import genai

    client = genai.Client(api_key="k", http_options={"base_url": url, "api_version": "v1beta"})

    def read():
        text, calls, counts, end = "", [], [], None
        for chunk in client.models.generate_content_stream(model="m", contents="go"):
            candidate = chunk.candidates[0]
            for part in (candidate.content.parts if candidate.content else None) or ():
                if part.function_call is not None:
                    call = part.function_call
                    calls.append([call.id, call.name, call.args or {}])
                elif part.text is not None and not part.thought:
                    text += part.text
            if candidate.finish_reason is not None:
                end = candidate.finish_reason.value
            if (usage := chunk.usage_metadata) is not None:
                thoughts = usage.thoughts_token_count or 0
                counts = [usage.prompt_token_count, (usage.candidates_token_count or 0) + thoughts]
                counts.append(usage.cached_content_token_count or 0)
        return text, calls, counts, end

    return read


READERS = {"openai": chat, "openai-responses": responses, "anthropic": messages, "gemini": gemini}


def main():
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    read = READERS[sys.argv[1]](f"http://127.0.0.1:{server.server_port}")
    for line in sys.stdin:
        Handler.body = base64.b64decode(line)
        text, calls, counts, end = read()
        print(json.dumps({"text": text, "calls": calls, "usage": counts, "end": end}), flush=True)


main()
