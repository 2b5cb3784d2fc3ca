"""Names and numbers of arguments of the functions (page 001 §6.3); what they do stands in `functions`."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["SIGNATURES", "STATUS_FUNCTIONS", "Signature"]


class Signature(msgspec.Struct, frozen=True):
    """A function takes `least` to `most` arguments, with `odd` an odd number of them."""

    name: str
    least: int
    most: int
    odd: bool = False

    def accepts(self, count: int) -> bool:
        """Return whether a call may have `count` arguments."""
        return self.least <= count <= self.most and not (self.odd and count % 2 == 0)

    @property
    def arity(self) -> str:
        """The numbers that it takes, as they stand in a message."""
        if self.odd:
            return f"an odd number of arguments from {self.least} to {self.most}"
        if self.most == 0:
            return "no arguments"
        if self.least < self.most:
            return f"{self.least} to {self.most} arguments"
        return f"{self.least} argument" + ("s" if self.least > 1 else "")


_ALL = (
    Signature("case", 3, 255, odd=True),
    Signature("contains", 2, 2),
    Signature("endsWith", 2, 2),
    Signature("format", 1, 255),
    Signature("fromJSON", 1, 1),
    Signature("join", 1, 2),
    Signature("length", 1, 1),
    Signature("startsWith", 2, 2),
    Signature("toJSON", 1, 1),
    Signature("always", 0, 0),
    Signature("cancelled", 0, 0),
    Signature("failure", 0, 0),
    Signature("success", 0, 0),
)

# By lower-case name: function names are case-insensitive.
SIGNATURES: Final = {signature.name.lower(): signature for signature in _ALL}
STATUS_FUNCTIONS: Final = frozenset({"always", "cancelled", "failure", "success"})
