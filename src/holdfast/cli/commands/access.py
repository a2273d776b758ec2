"""`holdfast access`: least-privilege accounts for a server, as text for that server. See docs/security.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.help import print_help
from holdfast.cli.options import Json
from holdfast.cli.output.atomic_file import write_whole
from holdfast.cli.output.screen import print_note, put_json
from holdfast.cli.plane_options import Config, settings
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.ops.access import AccessText

EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast access redis --prefix app: | redis-cli",
        "[dim]$[/dim] holdfast access redis --sentinel | redis-cli -p 26379",
        "[dim]$[/dim] holdfast access postgres | psql plane",
        "[dim]$[/dim] holdfast access etcd | sh",
        "[dim]$[/dim] holdfast access nats --out holdfast-accounts.conf",
        "[dim]$[/dim] holdfast access nats --bucket holdfast --out holdfast-leases.conf",
        "An account is unusable until you set its password. Permissions of each: docs/security.md",
    )
)

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of stdout.")]
Begins = Annotated[str, typer.Option("--name", metavar="NAME", help="Prefix of the account names.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    access = typer.Typer(help="Print least-privilege accounts for servers.", epilog=EPILOG)
    access.callback(invoke_without_command=True)(print_help)
    for command in (redis, postgres, etcd, nats):
        access.command()(command)
    app.add_typer(access, name="access")


def redis(
    config: Config = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="P", help="Prefix of lock keys. [dim]\\[default: the plane's keys][/dim]")
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="N", help="The ?namespace= of the store's URL.")
    ] = "holdfast",
    data: Annotated[
        str | None, typer.Option("--data", metavar="P", help="Add a user for guarded keys with this prefix.")
    ] = None,
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="P", help="With --data: channel prefix of guarded messages.")
    ] = None,
    sentinel: Annotated[bool, typer.Option("--sentinel", help="Print the user of the Sentinels instead.")] = False,
    name: Begins = "holdfast",
    out: Out = None,
    json: Json = False,
) -> None:
    """Print users for Redis, Valkey, Redis Cluster or Sentinel, as commands for redis-cli."""
    from holdfast.ops.access.redis import redis_access, sentinel_access

    if sentinel:
        if prefix or data or channel or namespace != "holdfast":
            raise BadInput("--sentinel", "the user of the Sentinels reaches no keys", "omit the options about keys")
        _put(sentinel_access(name=name), out, json=json)
        return
    keys = settings(config).names.keys
    made = redis_access(prefix=prefix, namespace=namespace, data=data, channel=channel, name=name, keys=keys)
    _put(made, out, json=json)


def postgres(
    schema: Annotated[str, typer.Option("--schema", metavar="S", help="The schema of the plane.")] = "holdfast",
    guarded: Annotated[
        list[str] | None,
        typer.Option("--guarded", metavar="TABLE", help="Print a writer of this guarded table instead; repeatable."),
    ] = None,
    name: Begins = "holdfast",
    out: Out = None,
    json: Json = False,
) -> None:
    """Print roles for Postgres, as SQL for psql."""
    from holdfast.ops.access.postgres import postgres_access, writer_access

    made = writer_access(guarded, name=name) if guarded else postgres_access(schema=schema, name=name)
    _put(made, out, json=json)


def etcd(
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="P", help="Prefix of keys: the path of the store's URL.")
    ] = "holdfast",
    name: Begins = "holdfast",
    out: Out = None,
    json: Json = False,
) -> None:
    """Print roles for etcd, as commands for a shell."""
    from holdfast.ops.access.etcd import etcd_access

    _put(etcd_access(prefix=prefix, name=name), out, json=json)


def nats(
    stream: Annotated[str, typer.Option("--stream", metavar="S", help="The ?stream= of the bus's URL.")] = "HOLDFAST",
    bucket: Annotated[
        str | None, typer.Option("--bucket", metavar="B", help="Print users of this lease bucket instead.")
    ] = None,
    name: Begins = "holdfast",
    out: Out = None,
    json: Json = False,
) -> None:
    """Print users for NATS, as a part of the server's configuration."""
    from holdfast.ops.access.nats import lease_access, nats_access

    made = nats_access(stream=stream, name=name) if bucket is None else lease_access(bucket=bucket, name=name)
    _put(made, out, json=json)


def _put(made: AccessText, out: Path | None, *, json: bool) -> None:
    if out is not None:
        write_whole("--out", out, made.text.encode())
    if json:
        put_json(made.as_dict())
        return
    if out is None:
        print(made.text, end="")
    for account, purpose in made.accounts.items():
        print_note(f"{account}: {purpose}")
    print_note(made.next)
