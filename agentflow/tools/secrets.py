"""Values of a service's `headers` and `env`: texts, and secrets, which the document only names.

`{"$secret": "crm-token"}` is the value of the environment variable AGENTFLOW_SECRET_CRM_TOKEN: the name in
capitals, every other character than letters and digits as `_`. It is read when it is needed, so a changed
secret counts from the next call on, and it stands nowhere but here and in what is sent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from agentflow import known_secrets
from agentflow.definition.redaction import is_sensitive, masker
from agentflow.known_secrets import secret_variable

__all__ = ["MissingSecret", "Values", "secret_variable"]


class MissingSecret(Exception):
    """The environment has no value for a secret; `key` is where it was wanted."""

    def __init__(self, key: str, name: str) -> None:
        super().__init__(f'secret "{name}" is not set')
        self.key = key
        self.name = name
        self.hint = f"set {secret_variable(name)} in the environment"


class Values:
    """The headers, or the environment, of one service. Neither `repr` nor an error shows a value."""

    def __init__(
        self, given: Mapping[str, str | Mapping[str, Any]], environ: Mapping[str, str] = os.environ
    ) -> None:
        self._given = given
        self._environ = environ
        # Values that stand in the document are hidden as they are, and in answers of this service alone: a
        # document must decide neither how long that takes nor which words vanish from the errors of others.
        self._mask_given = masker(
            (v for k, v in given.items() if isinstance(v, str) and is_sensitive(k)), encoded=False
        )
        # Also those of before a change: an answer that is under way may still quote them.
        self._seen: set[str] = set()
        self._mask_seen = masker(self._seen)

    def __repr__(self) -> str:
        return f"Values({', '.join(self._given)})"

    def missing(self) -> list[MissingSecret]:
        """Return the secrets that the environment does not have now, in order."""
        found: list[MissingSecret] = []
        for key, value in self._given.items():
            try:
                self._value(key, value)
            except MissingSecret as missing:
                found.append(missing)
        return found

    def resolve(self) -> dict[str, str]:
        """Return every value as it is now. Raises MissingSecret."""
        values = {key: self._value(key, value) for key, value in self._given.items()}
        new = {values[k] for k, v in self._given.items() if not isinstance(v, str)} - self._seen
        if new:
            known_secrets.add(*new)
            self._seen |= new
            self._mask_seen = masker(self._seen)
        return values

    def _value(self, key: str, value: str | Mapping[str, Any]) -> str:
        if isinstance(value, str):
            return value
        name = str(value["$secret"])
        # A file that was read into the variable ends in a line break, which no header can hold.
        secret = self._environ.get(secret_variable(name), "").strip("\r\n")
        if not secret:
            raise MissingSecret(key, name)
        return secret

    def mask(self, value: Any) -> Any:
        """Return a text or a JSON value without the secrets that were resolved so far, in any form, and
        without those that stand in the document."""
        return self._mask_given(self._mask_seen(value))
