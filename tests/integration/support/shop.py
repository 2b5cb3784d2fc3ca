"""Functions of a small shop, as services of the documents in the tests. They note when they ran."""

import asyncio

from agentflow import ToolContext, function

CUSTOMERS = {"ann@example.com": {"name": "Ann", "email": "ann@example.com", "phone": "1"}}
calls: list[tuple[str, dict, object]] = []
open_now: set[str] = set()
overlaps: set[frozenset[str]] = set()
gates: dict[str, asyncio.Event] = {}


def reset() -> None:
    calls.clear()
    open_now.clear()
    overlaps.clear()
    gates.clear()


async def _at_work(name: str) -> None:
    """Be open until the other one is, when a gate asks for it: shows that two calls overlap in time."""
    open_now.add(name)
    if len(open_now) > 1:
        overlaps.add(frozenset(open_now))
        for gate in gates.values():
            gate.set()
    if name in gates:
        await asyncio.wait_for(gates[name].wait(), 20)
    open_now.discard(name)


@function(name="getCustomer", side_effect="read")
async def get_customer(email: str, ctx: ToolContext) -> dict | None:
    """The customer with this e-mail address."""
    calls.append(("getCustomer", {"email": email}, ctx))
    await _at_work("getCustomer")
    return CUSTOMERS.get(email)


@function(name="getCompany", side_effect="read")
async def get_company(domain: str) -> dict:
    """The company that owns a domain."""
    calls.append(("getCompany", {"domain": domain}, None))
    await _at_work("getCompany")
    return {"name": domain.split(".")[0].title(), "tier": "gold"}


@function(name="getIssuedQuoteByEmail", side_effect="read")
def get_quote(email: str) -> dict:
    """The quote that was sent to this address."""
    calls.append(("getIssuedQuoteByEmail", {"email": email}, None))
    return {"quote": 7}


@function(name="getAccountManagerForCustomer", side_effect="read")
def get_manager(email: str) -> dict:
    """Who looks after this customer."""
    return {"manager": "Max"}


@function(name="attachStaffToTicket", side_effect="write", idempotent=True)
def attach_staff(ticket: str, staff: str) -> dict:
    """Put a colleague on the ticket."""
    calls.append(("attachStaffToTicket", {"ticket": ticket, "staff": staff}, None))
    return {"attached": True}


@function
def broken(reason: str) -> None:
    """Always fails."""
    raise RuntimeError(reason)
