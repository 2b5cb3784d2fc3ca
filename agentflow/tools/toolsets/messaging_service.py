"""The toolset `messaging`: send a message by SMTP, or to a webhook.

An id is given back only for what a server has accepted, because it is the evidence that a message was sent.
Attempts of one call have the same id, so that a receiver can tell a repeated message.
"""

from __future__ import annotations

import hashlib
import smtplib
import ssl
from collections.abc import Mapping
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, getaddresses
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from agentflow.config import MessagingConfig
from agentflow.errors import ConfigurationError
from agentflow.http import HttpClient, HttpFailure
from agentflow.threads import in_thread
from agentflow.tools.python import function
from agentflow.tools.secrets import MissingSecret, Values
from agentflow.tools.service import Service
from agentflow.tools.tool import ToolContext, ToolError
from agentflow.tools.toolsets.parts import private_service
from agentflow.tools.web import classify

__all__ = ["check_messaging", "is_configured", "messaging_service"]

_MAX_RECIPIENTS: Final = 100
_MAX_HEADER: Final = 32_000
"""Characters of recipients and subject."""
_MAX_BODY: Final = 1 << 20
_PORTS: Final = {"smtp": 587, "smtps": 465}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class _Server(msgspec.Struct, frozen=True, kw_only=True):
    scheme: str
    host: str
    port: int
    user: str
    password: str


def is_configured(config: MessagingConfig, values: Values | None = None) -> bool:
    """Return whether there is a way to send: a webhook, or a server with a sender; secrets must be set."""
    way = config.webhook if config.smtp_url is None else config.smtp_url
    if way is None or (config.smtp_url is not None and not config.sender):
        return False
    return not (values or _values(config)).missing()


def check_messaging(config: MessagingConfig) -> None:
    """Raise ConfigurationError for an address that is none; a secret is looked at when it is used."""
    for key, url, schemes in (
        ("smtp_url", config.smtp_url, ("smtp", "smtps")),
        ("webhook", config.webhook, ("http", "https")),
    ):
        if isinstance(url, str) and (urlsplit(url).scheme not in schemes or not urlsplit(url).hostname):
            hint = f"write {schemes[0]}://HOST:PORT"
            raise ConfigurationError(f"toolsets.messaging.{key} is no {schemes[0]} address", hint=hint)
        if isinstance(url, Mapping) and list(url) != ["$secret"]:
            hint = f'write {key} = {{ "$secret" = "NAME" }}'
            raise ConfigurationError(f"toolsets.messaging.{key} is neither text nor a secret", hint=hint)
    if config.smtp_url is not None and not config.sender:
        raise ConfigurationError(
            "toolsets.messaging has smtp_url and no sender", hint='add from = "name@example.org"'
        )


def _values(config: MessagingConfig) -> Values:
    given = {"smtp_url": config.smtp_url, "webhook": config.webhook}
    return Values({key: value for key, value in given.items() if value is not None})


def messaging_service(config: MessagingConfig) -> Service:
    """Return the service. With both ways configured, addresses of mail go to the server."""
    values = _values(config)
    # Where the operator points may be private.
    client = HttpClient(first_byte_timeout=config.timeout_s)

    @function(side_effect="external", idempotent=False)
    async def send(to: str, body: str, ctx: ToolContext, subject: str = "") -> dict[str, Any]:
        """Send a message. `to`: the recipient; several addresses of mail are separated by commas."""
        if len(body.encode("utf-8", "replace")) > _MAX_BODY:
            raise _refused(f"the body has more than {_MAX_BODY:,} bytes")
        try:
            ways = values.resolve()
        except MissingSecret as missing:
            message = f"messaging__send: {missing}"
            raise ToolError.of("policy", "secret_not_set", message, executed=False) from None
        if "smtp_url" in ways and ("webhook" not in ways or "@" in to):
            message = _message(config.sender or "", to, subject, body, ctx)
            await in_thread(
                lambda: _deliver(_server(ways["smtp_url"]), message, config.timeout_s), "agentflow smtp"
            )
            return {"message_id": str(message["Message-ID"]), "to": to}
        if "webhook" not in ways:
            raise ToolError.of("policy", "toolset_unavailable", "messaging is not configured", executed=False)
        return await _post(client, ways["webhook"], {"to": to, "subject": subject, "body": body}, ctx)

    service = private_service("messaging", send, timeout_s=2 * config.timeout_s)
    service.closer = client.aclose
    service.configured = lambda: is_configured(config)
    return service


def _refused(reason: str) -> ToolError:
    return ToolError.of("invalid_input", "invalid_tool_input", f"messaging__send: {reason}", executed=False)


# -- SMTP ---------------------------------------------------------------------------------------


def _message(sender: str, to: str, subject: str, body: str, ctx: ToolContext) -> EmailMessage:
    """Return the message. Raises ToolError for what is no address, and for a header in a header."""
    if len(to) + len(subject) > _MAX_HEADER:
        raise _refused(f"recipients and subject have more than {_MAX_HEADER:,} characters")
    try:
        addresses = [address for _, address in getaddresses([to])]
    except RecursionError:  # of comments within comments
        raise _refused('"to" is no address of mail') from None
    if not addresses or len(addresses) > _MAX_RECIPIENTS:
        raise _refused(f"there are {len(addresses)} recipients, 1 to {_MAX_RECIPIENTS} are allowed")
    for address in addresses:
        local, at, domain = address.rpartition("@")
        if not (local and at and domain) or any(c.isspace() or ord(c) < 33 for c in address):
            raise _refused('"to" is no address of mail')
    if any(ord(c) < 32 and c != "\t" for c in to + subject):
        raise _refused("a line break stands in a recipient or in the subject")
    message = EmailMessage(policy=SMTP)
    domain = sender.rpartition("@")[2].rstrip(">") or "localhost"
    digest = hashlib.sha256(ctx.idempotency_key.encode()).hexdigest()[:32]
    try:
        message["From"], message["To"] = sender, ", ".join(addresses)
        message["Subject"] = subject
        message["Date"] = formatdate()
        message["Message-ID"] = f"<{digest}@{domain}>"
        message.set_content(body)
    except (ValueError, MessageError, IndexError, UnicodeError):
        raise _refused("the recipient or the subject cannot stand in a message") from None
    return message


def _server(url: str) -> _Server:
    parts = urlsplit(url)
    return _Server(
        scheme=parts.scheme,
        host=parts.hostname or "",
        port=parts.port or _PORTS.get(parts.scheme, 587),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )


def _deliver(server: _Server, message: EmailMessage, timeout_s: float) -> None:
    """Send the message to the server; blocks. Raises ToolError, which says `not executed` for a failure
    before the server could accept the message."""
    began = False
    try:
        with _connect(server, timeout_s) as smtp:
            _secure(smtp, server)
            if server.user:
                smtp.login(server.user, server.password)
            began = True
            refused = smtp.send_message(message)
        if refused:
            raise _unsent(f"the server refused {len(refused)} of the recipients", executed=True)
    except smtplib.SMTPRecipientsRefused:
        raise _unsent("the server refused every recipient") from None
    except (smtplib.SMTPSenderRefused, smtplib.SMTPNotSupportedError):
        raise _unsent("the server refused the sender") from None
    except smtplib.SMTPAuthenticationError:
        message_text = "messaging__send: the server refused user or password"
        raise ToolError.of("auth", "authentication_failed", message_text, executed=False) from None
    except smtplib.SMTPDataError as error:
        raise _unsent(f"the server refused the message (status {error.smtp_code})") from None
    except (OSError, smtplib.SMTPException) as error:
        problem = f"messaging__send: the connection to the server failed ({type(error).__name__})"
        raise ToolError.of("transient", "network_error", problem, executed=began, unknown=began) from None


def _connect(server: _Server, timeout_s: float) -> smtplib.SMTP:
    if server.scheme == "smtps":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(server.host, server.port, timeout=timeout_s, context=context)
    return smtplib.SMTP(server.host, server.port, timeout=timeout_s)


def _secure(smtp: smtplib.SMTP, server: _Server) -> None:
    """Begin TLS where the server offers it. A password goes over an open connection to this machine only."""
    smtp.ehlo()
    if server.scheme == "smtps":
        return
    if smtp.has_extn("starttls"):
        smtp.starttls(context=ssl.create_default_context())
        smtp.ehlo()
    elif server.password and server.host not in _LOOPBACK:
        raise _unsent("the server offers no TLS, and a password is not sent without it")


def _unsent(reason: str, *, executed: bool = False) -> ToolError:
    return ToolError.of("tool", "message_refused", f"messaging__send: {reason}", executed=executed)


# -- webhook ------------------------------------------------------------------------------------


async def _post(client: HttpClient, url: str, value: dict[str, str], ctx: ToolContext) -> dict[str, Any]:
    headers = {"content-type": "application/json", "idempotency-key": ctx.idempotency_key}
    try:
        async with client.post(url, headers=headers, body=msgspec.json.encode(value)) as response:
            if not 200 <= response.status < 300:
                category, code = classify(response.status)
                problem = f"messaging__send: the webhook answered HTTP {response.status}"
                raise ToolError.of(
                    category,
                    code,
                    problem,
                    unknown=response.status in (502, 504),
                    http_status=response.status,
                )
            body = await response.read(64 << 10)
            status = response.status
    except HttpFailure as failure:
        problem = f"messaging__send: the webhook did not answer ({failure.kind})"
        raise ToolError.of(
            "transient", "network_error", problem, executed=failure.sent, unknown=failure.sent
        ) from None
    return {"id": _id_of(body) or f"call:{ctx.call_id}", "status": status}


def _id_of(body: bytes) -> str | None:
    """Return the id that the webhook gave, None if its answer has none."""
    try:
        answer: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    for key in ("id", "message_id"):
        found: Any = answer.get(key) if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(found, str | int) and not isinstance(found, bool):
            return str(found)[:500]
    return None
