"""``vtrain serve``: host disputes over HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import echo
from vtrain.cli.common import VtrainCommand, naming_option


@click.command("serve", cls=VtrainCommand)
@click.option(
    "--db",
    required=True,
    metavar="URL",
    help="Database, made or migrated as needed: sqlite:///PATH or postgresql://...",
)
@click.option(
    "--key",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Key that signs receipts (vtrain key new); keep it with the database.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8484,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--deposits",
    metavar="URL",
    help="Database of the parties' deposits, of which bonds are locked; needs --token.",
)
@click.option("--free-bonds", is_flag=True, help="Ask nobody for a bond, whatever a game says.")
@click.option(
    "--token",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the operator's token; deposits and webhooks need it.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Reverse proxy whose X-Forwarded-For says where a request comes from; may be repeated.",
)
@click.option(
    "--allow-private-webhooks",
    is_flag=True,
    help="Let webhooks reach private addresses: only where they come from you alone.",
)
@click.option(
    "--least-clock",
    type=click.FloatRange(min=0, min_open=True, max=1e9),
    metavar="SECONDS",
    help="Shortest time that a game may give its players.  [default: 60]",
)
def command(
    db: str,
    key: Path,
    host: str,
    port: int,
    deposits: str | None,
    free_bonds: bool,
    token: Path | None,
    proxies: tuple[str, ...],
    allow_private_webhooks: bool,
    least_clock: float | None,
) -> None:
    """Host disputes over HTTP until stopped: see docs/service.md.

    Prints its address and the key of its receipts once it listens.  Bonds come from deposits, which
    the operator enters (POST /v1/deposits), unless --free-bonds says that there are none.  A
    marketplace embeds vtrain.dispute.service with a market port of its own.
    """
    if (deposits is not None) == free_bonds:
        raise click.UsageError("needs one of --deposits URL and --free-bonds")
    if deposits is not None and token is None:
        raise click.UsageError("--deposits needs --token: the operator enters them with it")
    from vtrain.dispute.service import require_server

    require_server()
    from contextlib import ExitStack, closing
    from dataclasses import replace

    from vtrain.attest.keys import load_key, public_key
    from vtrain.dispute.market import MemoryMarket
    from vtrain.dispute.service.ledger import Ledger
    from vtrain.dispute.service.limits import LIMITS
    from vtrain.dispute.service.run import read_token, serve
    from vtrain.wire.dispute import Clocks

    limits = LIMITS
    if least_clock is not None:
        least = max(1, round(1000 * least_clock))
        clocks = Clocks(
            join=least,
            trace=least,
            terms=max(least // 4, 1),
            budget=least,
            grace=max(least // 16, 1),
            answer=0,
            opening=0,
            replay=0,
        )
        limits = replace(LIMITS, least=clocks)
    with naming_option("--key", key):
        private = load_key(key)
    secret = ""
    if token is not None:
        with naming_option("--token", token):
            secret = read_token(token)

    def ready(url: str) -> None:
        echo(f"{url} {public_key(private).hex()}")

    with ExitStack() as stack:
        ledger = None
        if deposits is not None:
            with naming_option("--deposits", "db", "database"):
                ledger = stack.enter_context(closing(Ledger(deposits)))
        stack.enter_context(naming_option("--db", "db", "database"))
        serve(
            db,
            private,
            host=host,
            port=port,
            market=ledger or MemoryMarket(),
            ledger=ledger,
            free=free_bonds,
            token=secret,
            allow_private_webhooks=allow_private_webhooks,
            proxies=proxies,
            limits=limits,
            ready=ready,
        )
