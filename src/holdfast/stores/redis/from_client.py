"""A client of redis-py as the description of a server: `connect(client=…)`.

Promises: the store uses the address, database, account, credential provider, TLS settings and Sentinels of the client,
with connections of its own. The client itself is neither used nor closed: the connections of a lease must outlive its
pool, follow other time limits, and never wait behind the commands of the program. A setting that the store cannot
follow is refused by name, never ignored; those about time limits, retries, encoding and the size of the pool have no
meaning here.

Does not promise to follow a client that is changed afterwards.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import BadInput
from holdfast.stores.redis.cluster_store import ClusterEngine
from holdfast.stores.redis.engine import RedisEngine
from holdfast.stores.redis.sentinel import PrimarySource
from holdfast.stores.redis.url import RedisAddress, SentinelAddress

_OCSP: Final = ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "ssl_ocsp_context", "ssl_ocsp_expected_cert")
_FIX: Final = "give a URL, or a client without it"


def engine_of(client: object) -> RedisEngine | ClusterEngine:
    """An engine for the server of a client of redis-py, blocking or asyncio."""
    pool: Any = getattr(client, "connection_pool", None)
    if hasattr(client, "nodes_manager"):
        return _cluster(client)
    settings = getattr(pool, "connection_kwargs", None)
    if not isinstance(settings, Mapping):
        raise BadInput("client", f"{type(client).__name__} has no connection pool", "give a redis.Redis")
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return RedisEngine(_address(settings, pool.connection_class))
    if not pool.is_master:
        raise BadInput("client", "reads from replicas", "give the client of `Sentinel.master_for`")
    sentinels = tuple(
        _address(each.connection_pool.connection_kwargs, each.connection_pool.connection_class)
        for each in manager.sentinels
    )
    primary = _address(settings, pool.connection_class, service=str(pool.service_name))
    return RedisEngine(primary, PrimarySource(SentinelAddress(sentinels, primary)))


def _cluster(client: Any) -> ClusterEngine:
    manager = client.nodes_manager
    settings: dict[str, Any] = dict(getattr(manager, "connection_kwargs", None) or client.connection_kwargs)
    if getattr(manager, "address_remap", None) is not None:
        raise BadInput("client", "has an address_remap", _FIX)
    if getattr(client, "user_on_connect_func", None) is None:
        settings.pop("redis_connect_func", None)  # the client's own
    kind = settings.get("connection_class")
    secure = bool(settings.get("ssl")) or (kind is not None and "SSL" in kind.__name__)
    nodes = manager.startup_nodes.values()
    seeds = [_address({**settings, "host": each.host, "port": each.port}, kind, secure=secure) for each in nodes]
    return ClusterEngine(seeds)


def _address(
    settings: Mapping[str, Any], kind: type | None, service: str = "", *, secure: bool = False
) -> RedisAddress:
    if kind is not None and kind.__module__.partition(".")[0] != "redis":
        raise BadInput("client", f"has connections of its own kind ({kind.__name__})", _FIX)
    if settings.get("redis_connect_func") is not None:
        raise BadInput("client", "has a redis_connect_func", _FIX)
    for name in _OCSP:
        if settings.get(name):
            raise BadInput("client", f"has {name}", _FIX)
    path = settings.get("path")
    return RedisAddress(
        host="" if path or service else str(settings.get("host", "localhost")),
        port=0 if path or service else int(settings.get("port", 6379)),
        path=path,
        db=int(settings.get("db") or 0),
        username=settings.get("username") or None,
        password=settings.get("password"),
        tls=_tls(settings) if secure or (kind is not None and "SSL" in kind.__name__) else None,
        prefix="",
        namespace="holdfast",
        service=service,
        credentials=settings.get("credential_provider"),
    )


def _tls(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """The context that redis-py would make."""
    try:
        context = ssl.create_default_context(
            cafile=settings.get("ssl_ca_certs"),
            capath=settings.get("ssl_ca_path"),
            cadata=settings.get("ssl_ca_data"),
        )
        required = settings.get("ssl_cert_reqs", "required")
        mode = required if isinstance(required, ssl.VerifyMode) else _MODES[str(required or "none")]
        context.check_hostname = bool(settings.get("ssl_check_hostname", True)) and mode is not ssl.CERT_NONE
        context.verify_mode = mode
        for flag in settings.get("ssl_include_verify_flags") or ():
            context.verify_flags |= flag
        for flag in settings.get("ssl_exclude_verify_flags") or ():
            context.verify_flags &= ~flag
        if settings.get("ssl_certfile"):
            context.load_cert_chain(settings["ssl_certfile"], settings.get("ssl_keyfile"), settings.get("ssl_password"))
        if settings.get("ssl_min_version") is not None:
            context.minimum_version = settings["ssl_min_version"]
        if settings.get("ssl_ciphers"):
            context.set_ciphers(settings["ssl_ciphers"])
    except (OSError, KeyError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise BadInput("client", f"has TLS settings that cannot be used ({reason})", _FIX) from error
    return context


_MODES: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
