"""Triage the folder of tickets with the command line, then print what a person wants to see.

    python examples/ticket_triage/demo.py [--store URL]

Uses whatever model is configured; with nothing set, the embedded one. Compares with `labels.json`, which
only this program reads: neither the workflow nor the model ever sees it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from email.parser import Parser
from email.utils import parseaddr
from pathlib import Path

HERE = Path(__file__).parent


def read_tickets() -> list[dict[str, str]]:
    """Every ticket of the folder, in the order of its file names."""
    tickets: list[dict[str, str]] = []
    for path in sorted((HERE / "tickets").glob("*.txt")):
        mail = Parser().parsestr(path.read_text(encoding="utf-8"))
        tickets.append(
            {
                "id": path.stem,
                "from": parseaddr(mail["From"])[1],
                "subject": mail["Subject"],
                "text": str(mail.get_payload()).strip(),
            }
        )
    return tickets


def run(tickets: list[dict[str, str]], store: str | None) -> dict:
    """`agentflow run`, with its progress on this terminal and its result from stdout."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as inputs:
        json.dump({"tickets": tickets}, inputs)
        inputs.flush()
        command = [sys.executable, "-m", "agentflow", "run", str(HERE / "triage.yaml")]
        command += ["--input", f"@{inputs.name}", "--json"]
        if store:
            command += ["--store", store]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def accuracy(tickets: list[dict[str, str]], output: dict) -> dict[str, int]:
    """How many tickets got the label that a person gave, by field."""
    labels = json.loads((HERE / "labels.json").read_text(encoding="utf-8"))
    right = {"urgency": 0, "topic": 0}
    for i, ticket in enumerate(tickets):
        for field in right:
            right[field] += output[field][i][field] == labels[ticket["id"]][field]
    return right


def show(tickets: list[dict[str, str]], result: dict) -> None:
    """The table, the accuracy and how to look closer."""
    output = result["output"]
    print(f"{'':4}{'urgency':9}{'topic':10}{'company':13}{'plan':8}{'on the desk':13}subject")
    for i, ticket in enumerate(tickets):
        customer = output["customer"][i]
        desk = "yes" if output["escalated"][i] else ""
        row = f"{output['urgency'][i]['urgency']:9}{output['topic'][i]['topic']:10}"
        print(
            f"{ticket['id']:4}{row}{customer['company']:13}{customer['plan']:8}{desk:13}{ticket['subject']}"
        )
    right = accuracy(tickets, output)
    usage = result["usage"]
    print()
    print(
        f"labels as a person gave them: urgency {right['urgency']} of {len(tickets)}, topic {right['topic']}"
    )
    tokens = usage["input_tokens"] + usage["output_tokens"]
    seconds = result["duration_ms"] / 1000
    print(
        f"{usage['model_calls']} model calls, {usage['tool_calls']} calls of functions, {tokens} tokens,"
        f" {seconds:.0f} s"
    )
    print(f"run {result['workflow_id']}: look closer with `agentflow show` and `agentflow events`")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="where the run is kept (default: the store of the user)")
    tickets = read_tickets()
    result = run(tickets, parser.parse_args().store)
    show(tickets, result)


if __name__ == "__main__":
    main()
