"""Notifications to systemd, and the unit that runs the daemon."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence

__all__ = ["sd_notify", "unit_file"]


def sd_notify(state: str, env: Mapping[str, str] | None = None) -> None:
    """Tell the service manager, if there is one: `READY=1`, `STOPPING=1`, `STATUS=…`. Never raises."""
    address = (os.environ if env is None else env).get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.sendall(state.encode())


def unit_file(arguments: Sequence[str] = ()) -> str:
    """Return a systemd user unit that runs this installation with these arguments of `serve`."""
    command = shlex.join([sys.executable, "-m", "agentflow", "serve", *arguments])
    return f"""\
# systemctl --user link or copy this to ~/.config/systemd/user/agentflow.service, then
#   systemctl --user daemon-reload && systemctl --user enable --now agentflow
[Unit]
Description=agentflow daemon
Documentation=man:systemd.service(5)

[Service]
Type=notify
NotifyAccess=main
ExecStart={command.replace("%", "%%")}
# Runs are parked at SIGTERM and go on at the next start; a crash loses nothing either.
KillSignal=SIGTERM
KillMode=mixed
TimeoutStopSec=35
# Connections, runs and the processes of tools; the daemon raises its soft limit to this.
LimitNOFILE=65536
Restart=on-failure
RestartPreventExitStatus=78
RuntimeDirectory=agentflow
RuntimeDirectoryMode=0700
UMask=0077
NoNewPrivileges=true
PrivateTmp=true

[Install]
WantedBy=default.target
"""
