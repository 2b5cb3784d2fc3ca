"""The functions of the workflow: a customer database, and the desk that gets what is urgent.

Both are SQLite files in the folder that TRIAGE_DATA names (the example's own `data` folder if it is not
set). The customers are made on first use.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from agentflow import ToolContext, function

CUSTOMERS = [
    ("ann.berger@northwind.example", "Northwind", "gold"),
    ("tom@bluebird.example", "Bluebird", "basic"),
    ("mia.novak@contoso.example", "Contoso", "silver"),
    ("raj@fabrikam.example", "Fabrikam", "gold"),
    ("lena@acme.example", "Acme", "basic"),
    ("omar.haddad@globex.example", "Globex", "gold"),
    ("grace@initech.example", "Initech", "silver"),
    ("paul@umbrella.example", "Umbrella", "gold"),
    ("ben@vandelay.example", "Vandelay", "silver"),
    ("ivy.chen@wonka.example", "Wonka", "basic"),
    ("noah@stark.example", "Stark", "gold"),
    ("eva.lind@massive.example", "Massive", "silver"),
    ("sam@cyberdyne.example", "Cyberdyne", "gold"),
    ("nina@soylent.example", "Soylent", "basic"),
    ("leo@tyrell.example", "Tyrell", "silver"),
    ("zoe@aperture.example", "Aperture", "gold"),
    ("kai@oscorp.example", "Oscorp", "basic"),
    ("ada@gringotts.example", "Gringotts", "silver"),
    ("max@weyland.example", "Weyland", "gold"),
]


def _database() -> sqlite3.Connection:
    folder = Path(os.environ.get("TRIAGE_DATA") or Path(__file__).parent / "data")
    folder.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(folder / "crm.db", timeout=10)
    db.execute("CREATE TABLE IF NOT EXISTS customer (email TEXT PRIMARY KEY, company TEXT, plan TEXT)")
    db.execute("CREATE TABLE IF NOT EXISTS escalation (key TEXT PRIMARY KEY, ticket TEXT, company TEXT)")
    db.executemany("INSERT OR IGNORE INTO customer VALUES (?, ?, ?)", CUSTOMERS)
    db.commit()
    return db


@function(side_effect="read")
def find_customer(email: str) -> dict[str, str]:
    """Look the customer up by e-mail address."""
    with closing(_database()) as db:
        row = db.execute("SELECT company, plan FROM customer WHERE email = ?", (email,)).fetchone()
    if row is None:
        return {"company": "unknown", "plan": "none"}
    return {"company": row[0], "plan": row[1]}


@function(side_effect="write", idempotent=True)
def escalate(company: str, ctx: ToolContext) -> dict[str, str | bool]:
    """Put the ticket of this company on the desk of the engineer on call."""
    # The key is the same for every attempt of this call, so a repeated one leaves a single row.
    with closing(_database()) as db:
        row = (ctx.idempotency_key, ctx.context["ticket"], company)
        db.execute("INSERT OR IGNORE INTO escalation VALUES (?, ?, ?)", row)
        db.commit()
    return {"escalated": True, "ticket": ctx.context["ticket"]}
