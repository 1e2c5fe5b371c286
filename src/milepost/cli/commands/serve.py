"""`milepost serve`: the log and its subscriptions over the network."""

import asyncio
import socket
import sys
from functools import partial
from ipaddress import ip_network
from ssl import SSLError
from typing import TYPE_CHECKING, Annotated

import typer

from milepost.app import Milepost
from milepost.cli.exit_status import CommandError, print_note
from milepost.cli.options import DEFAULT_PORT, Schema, Url, check_seconds, make_milepost
from milepost.names import is_loopback, is_loopback_url
from milepost.postgres.describe import host_names
from milepost.server import MISSING
from milepost.server.access.tokens import TokenStore
from milepost.server.http.origin import LOCAL_NAMES, server_url

if TYPE_CHECKING:
    from milepost.server.process import TlsCertificate


def serve(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 or :: for every interface.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any that is free.")] = DEFAULT_PORT,
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded", help="Serve a PostgreSQL of its own in ./.milepost: the same as --url embedded."
        ),
    ] = False,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Ask for a token on this machine too; elsewhere one is always asked for."),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which it may be asked; can be repeated.", show_default=False),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="A certificate with its chain, for TLS.", show_default=False)
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The key of the certificate.", show_default=False)
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where clients of other servers on the same database reach this one: "
            "https://milepost-1:8480. The address it listens at, unless this says another.",
            show_default=False,
        ),
    ] = None,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="The address, or the network, of a proxy that is believed from where a request comes and whether "
            "it was encrypted; can be repeated.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long what is open may take to end after a signal.")
    ] = 25,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Serves the log and its subscriptions over HTTP and WebSocket, until Ctrl-C or SIGTERM.

    **Try it:** `milepost serve --embedded`, then open http://localhost:8480, which is the console; programs ask
    `curl localhost:8480/v1/head`

    Without a token it serves this machine alone. On any other address every request needs one, which
    `milepost token make` makes. What there is to ask is described at /openapi.json.
    """
    check_seconds("--grace", grace)
    if embedded and url is not None:
        raise CommandError("--embedded and --url exclude each other")
    certificate = _certificate(tls_cert, tls_key)
    mp = make_milepost("embedded" if embedded else url, schema)
    is_local = is_loopback(host) and not tokens
    asyncio.run(
        _serve(
            mp,
            host,
            port,
            hosts=_allowed_hosts(allow_host, is_local),
            local=is_local,
            tls=certificate,
            grace=grace,
            advertise=_check_advertised(advertise),
            trusted_proxies=_check_proxies(trust_proxy),
        )
    )


async def _serve(
    mp: Milepost,
    host: str,
    port: int,
    *,
    hosts: frozenset[str] | None,
    local: bool,
    tls: "TlsCertificate | None",
    grace: float,
    advertise: str | None,
    trusted_proxies: list[str],
) -> None:
    from milepost.console import Console
    from milepost.server import create_app, process

    try:
        listener = process.listen(host, port)
    except OSError as error:
        raise CommandError(f"--host {host} --port {port}: {error.strerror or error}") from error
    with listener:
        address = _address(host, listener.getsockname()[1], encrypted=tls is not None)
        app = create_app(
            mp,
            access="local" if local else "tokens",
            hosts=hosts,
            advertise=advertise or _reachable_address(address),
            pages=Console,
            trusted_proxies=trusted_proxies,
        )
        async with mp:
            if is_loopback_url(app.connections.node or "") and _has_database_elsewhere(mp.url):
                print_note(
                    "clients of other servers on this database are not sent here, since only this machine reaches "
                    "it: they stand by while this server has their subscription. --advertise tells another address"
                )
            if not local:
                await _print_remarks(mp, encrypted=tls is not None or is_loopback(host))
            await process.serve(app, listener, grace=grace, tls=tls, ready=partial(_print_address, address))


def _print_address(address: str) -> None:
    typer.echo(f"serving at {address}")
    sys.stdout.flush()


def _address(host: str, port: int, *, encrypted: bool) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if encrypted else 'http'}://{name}:{port}"


def _reachable_address(address: str) -> str:
    """Return the address at which other machines reach this one: its name, if it listens on every interface."""
    for anywhere in ("//0.0.0.0:", "//[::]:"):
        address = address.replace(anywhere, f"//{socket.gethostname()}:")
    return address


def _check_proxies(addresses: list[str] | None) -> list[str]:
    for address in addresses or ():
        try:
            ip_network(address)
        except ValueError as error:
            raise CommandError(
                f"--trust-proxy {address}: an address or a network such as 10.0.0.0/8 is wanted"
            ) from error
    return addresses or []


def _has_database_elsewhere(url: str) -> bool:
    return not all(host == "" or host.startswith("/") or is_loopback(host) for host in host_names(url))


def _check_advertised(url: str | None) -> str | None:
    try:
        return None if url is None else server_url(url)
    except ValueError as error:
        raise CommandError(f"--advertise: {error}") from error


async def _print_remarks(mp: Milepost, *, encrypted: bool) -> None:
    """Print what an operator may have overlooked: no token yet, tokens in clear text."""
    if not (await TokenStore(mp).in_force()).tokens:
        where = " --url embedded" if mp.settings["url"].value == "embedded" else ""
        make = f"`milepost token make NAME --role read{where}`"
        print_note(f"there is no token yet, and every request is refused: make one, {make}")
    if not encrypted:
        print_note(
            "tokens travel in clear text: give --tls-cert and --tls-key, or let a proxy with TLS stand before it"
        )


def _allowed_hosts(allowed: list[str] | None, is_local: bool) -> frozenset[str] | None:
    """Return the host names that requests may use; None means any."""
    if not allowed:
        return LOCAL_NAMES if is_local else None
    return frozenset(name.lower() for name in allowed) | (LOCAL_NAMES if is_local else frozenset())


def _certificate(certificate: str | None, key: str | None) -> "TlsCertificate | None":
    try:
        from milepost.server.process import TlsCertificate
    except ModuleNotFoundError as error:
        raise CommandError(MISSING) from error
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise CommandError("--tls-cert and --tls-key go together")
    found = TlsCertificate(certificate, key)
    try:
        found.check()
    except SSLError as error:
        raise CommandError(f"--tls-cert and --tls-key: {error.reason or error}") from error
    except OSError as error:
        raise CommandError(f"--tls-cert and --tls-key: {error.strerror}") from error
    return found
