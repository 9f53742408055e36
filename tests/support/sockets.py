"""Sockets: addresses of any length, and certificates."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest


def create_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Create a certificate for ``a.test`` in a folder. Return its path and a TLS context for a server."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    path, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=a.test", "-addext", "subjectAltName=DNS:a.test"]
    subprocess.run(
        ["openssl", *options.split(), *subject, "-keyout", str(key), "-out", str(path)], check=True, capture_output=True
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path, key)
    return path, tls


def bind(made: socket.socket, path: Path) -> None:
    """Bind a socket to a path; an address itself has no more than some 107 bytes."""
    folder = os.open(path.parent, os.O_PATH)
    try:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
