"""Where a Redis or Valkey server is and how to talk to it: the URL, understood completely or refused.

    redis://[user:password@]host[:port][/db]        valkey:// is the same
    rediss://…                                      with TLS, verified; valkeys:// is the same
    unix:///path/to.sock?db=0                       redis+unix:// is the same

Options: `prefix` goes before every lock name (none by default: the Redis key *is* the lock name), `namespace` begins
the names of what the store keeps besides locks (default `holdfast`), `db`, and for TLS `ssl_ca_certs`, `ssl_certfile`,
`ssl_keyfile`, `ssl_cert_reqs` (`required`, or `none` to trust any server) and `ssl_check_hostname`.

Promises: nothing is sent anywhere; no text made here contains a password, for no error shows the URL.
"""

from __future__ import annotations

import difflib
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from holdfast.errors import BadInput
from holdfast.stores.registry import redacted
from holdfast.types import check_key, check_label

DEFAULT_PORT = 6379
DB_MAX = 65_535  # what a server really has is its own setting; this only refuses nonsense

_TCP = ("redis", "valkey", "rediss", "valkeys")
_TLS = ("rediss", "valkeys")
_UNIX = ("unix", "redis+unix")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_OPTIONS = ("prefix", "namespace", "db", *_TLS_OPTIONS)
_SHAPE = "write redis://[user:password@]host:6379/0 or unix:///path/to.sock?db=0"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A parsed URL. Safe to print: the password is not part of its text, and `str()` is how errors name the server."""

    host: str
    port: int
    path: str | None  # a unix socket, instead of host and port
    db: int
    username: str | None
    password: str | None = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)
    prefix: str
    namespace: str

    def __str__(self) -> str:
        if self.path is not None:
            return redacted(f"unix:{self.path}")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_redis_url(url: str) -> RedisAddress:
    """Understand a URL, or raise `BadInput` that names the part and the fix."""
    if not url.isascii() and url != url.encode("utf-8", "replace").decode():
        raise BadInput("url", "holds bytes that are no text", "write it in UTF-8")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadInput("url", "is not a URL, or its port is not a number from 0 to 65535", _SHAPE) from None
    scheme = parts.scheme.lower()
    if scheme not in (*_TCP, *_UNIX):
        raise BadInput("url", f"{scheme}:// is not a Redis URL", _SHAPE)
    if parts.fragment:
        raise BadInput("url", "has a '#' part", "write a '#' in a password as %23")
    options = _options(parts.query, tls=scheme in _TLS)
    if scheme in _UNIX:
        host, port, path, db_text = "", 0, _socket_path(parts), options.get("db", "")
    else:
        host, path, db_text = _host(parts), None, _db_text(parts.path, options)
        port = DEFAULT_PORT if port is None else port
        if not port:
            raise BadInput("url", "port 0 is no port", _SHAPE)
    if parts.username and parts.password is None:
        raise BadInput("url user", "a user without a password", "write redis://user:password@host")
    return RedisAddress(
        host=host,
        port=port,
        path=path,
        db=_db(db_text),
        username=unquote(parts.username) if parts.username else None,
        password=None if parts.password is None else unquote(parts.password),
        tls=_context(options) if scheme in _TLS else None,
        prefix=check_key("url option prefix", options["prefix"]) if options.get("prefix") else "",
        namespace=check_label("url option namespace", options.get("namespace", "holdfast")),
    )


def _options(query: str, *, tls: bool) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(_OPTIONS)}"
            # The name is shown only if it looks like one: an unescaped '?' in a password would end up here.
            shown = repr(name) if near else "one"
            raise BadInput("url option", f"{shown} is not an option of this store", hint)
        if name in options:
            raise BadInput(f"url option {name}", "is given twice", "give it once")
        if name in _TLS_OPTIONS and not tls:
            raise BadInput(f"url option {name}", "is for TLS, and this URL is not", "write rediss:// for TLS")
        options[name] = value
    return options


def _host(parts: SplitResult) -> str:
    """A name or an address that can be looked up; what no resolver takes would be found out only in use."""
    host = parts.hostname or "localhost"
    if not host.isprintable() or " " in host:
        raise BadInput("url host", "has a space or an unprintable character in it", _SHAPE)
    return host


def _socket_path(parts: SplitResult) -> str:
    if parts.hostname:
        raise BadInput("url", "a unix socket has no host", "write three slashes: unix:///path/to.sock")
    path = unquote(parts.path)
    if path in ("", "/"):
        raise BadInput("url", "names no socket", "write unix:///path/to.sock")
    if "\0" in path:
        raise BadInput("url", "the path contains a zero byte", "remove it")
    return path


def _db_text(path: str, options: dict[str, str]) -> str:
    in_path = path.removeprefix("/")
    if in_path and "db" in options:
        raise BadInput("url option db", "the database is given twice", "give it in the path or as an option")
    return in_path or options.get("db", "")


def _db(text: str) -> int:
    if not text:
        return 0
    # Python itself refuses to read thousands of digits, with an error that is not ours.
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(DB_MAX)) or int(text) > DB_MAX:
        raise BadInput("url db", "the database is not a number", f"give 0 to {DB_MAX}, as in redis://host:6379/0")
    return int(text)


def _context(options: dict[str, str]) -> ssl.SSLContext:
    """Set up TLS once, so that a file that is not there is found now and not in the first incident."""
    ca = _file(options, "ssl_ca_certs")
    certificate, key = _file(options, "ssl_certfile"), _file(options, "ssl_keyfile")
    if key and not certificate:
        raise BadInput("url option ssl_keyfile", "a key without its certificate", "give ssl_certfile too")
    required = _choice(options, "ssl_cert_reqs", {"required": True, "none": False}, default=True)
    named = _choice(options, "ssl_check_hostname", {"true": True, "false": False}, default=required)
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise BadInput(
            "url option ssl_ca_certs", f"{error.reason or 'unreadable'}", "give a file in PEM form"
        ) from error
    if named and not required:
        raise BadInput("url option ssl_check_hostname", "cannot be checked with ssl_cert_reqs=none", "drop one of them")
    context.check_hostname = named
    if not required:
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        try:
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise BadInput(
                "url option ssl_certfile", f"{error.reason or 'unreadable'}", "give a matching pair in PEM form"
            ) from error
    return context


def _file(options: dict[str, str], name: str) -> str | None:
    path = options.get(name)
    if path is None:
        return None
    try:
        with Path(path).open("rb"):
            return path
    except (OSError, ValueError) as error:  # a ValueError is a name with a zero character
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"url option {name}", f"{path!r}: {reason}", "give a file that can be read") from error


def _choice(options: dict[str, str], name: str, choices: dict[str, bool], *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in choices:
        raise BadInput(f"url option {name}", f"{text[:20]!r} is not a choice", f"use one of {', '.join(choices)}")
    return choices[text.lower()]
