"""Settings: from flags, environment and file, in that order; refused with place and fix; silent about secrets."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import Fixed, Jittered
from holdfast.errors import BadInput
from holdfast.plane.jobs.rules import StateLimits
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.inventory import inventory
from holdfast.plane.settings.settings import KEYS, SECTIONS, Origin, Settings
from holdfast.plane.settings.sources import CONFIG_VARIABLE, OTHERS, BadSettings, FlagValue, load
from holdfast.types import MS, NS

SECRET = "s3cr3t-word"


def loaded(
    tmp_path: Path, text: str | None = None, environment: Mapping[str, str] | None = None, **flags: Any
) -> Settings:
    if text is not None:
        (tmp_path / "holdfast.toml").write_text(text, encoding="utf-8")
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return load(flags=given, environment=environment or {}, directory=tmp_path)


def refused(tmp_path: Path, text: str | None = None, environment: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        loaded(tmp_path, text, environment)
    assert str(caught.value.problems[0]) in str(caught.value) or len(caught.value.problems) > 1
    return [str(each) for each in caught.value.problems]


def test_without_anything_everything_is_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = loaded(tmp_path)
    assert settings == Settings()
    assert settings.database_url == settings.lease_url == f"sqlite:///{tmp_path}/holdfast/leases.db"
    assert settings.bus is None
    assert {each["from"] for each in settings.shown().values()} == {"default"}
    assert not (tmp_path / "holdfast").exists(), "settings open and make nothing"


def test_a_flag_counts_more_than_the_environment_and_that_more_than_the_file(tmp_path: Path) -> None:
    text = "grace = 11\n\n[worker]\nconcurrency = 3\ncount = 4\n\n[api]\nport = 1\n"
    environment = {"HOLDFAST_WORKER_COUNT": "5", "HOLDFAST_API_PORT": "2"}
    settings = loaded(tmp_path, text, environment, api__port=3, api__host=None)
    assert (settings.grace, settings.worker.concurrency, settings.worker.count, settings.api.port) == (11.0, 3, 5, 3)
    assert settings.origin("grace") == Origin("file", "holdfast.toml:1")
    assert str(settings.origin("worker.concurrency")) == "holdfast.toml:4"
    assert str(settings.origin("worker.count")) == "$HOLDFAST_WORKER_COUNT"
    assert str(settings.origin("api.port")) == "--port"
    assert str(settings.origin("api.host")) == "default"
    assert settings.file == str(tmp_path / "holdfast.toml")


def test_a_file_may_be_named_by_argument_or_environment(tmp_path: Path) -> None:
    named = tmp_path / "other.toml"
    named.write_text("grace = 7", encoding="utf-8")
    assert load(named, environment={}, directory=tmp_path).grace == 7.0
    assert load(environment={"HOLDFAST_CONFIG": str(named)}, directory=tmp_path).grace == 7.0
    assert load(str(named), environment={"HOLDFAST_CONFIG": "nowhere"}, directory=tmp_path).grace == 7.0


def test_an_empty_variable_is_no_value(tmp_path: Path) -> None:
    assert loaded(tmp_path, None, {"HOLDFAST_WORKER_COUNT": "", "HOLDFAST_CONFIG": ""}) == Settings()


def test_every_key_can_be_given_in_the_file_and_in_the_environment(tmp_path: Path) -> None:
    """Each with its own default, or an example, so that nothing that is declared cannot be said."""
    examples = {
        "database": "sqlite:///a.db",
        "bus": "nats://h:4222",
        "leases": "redis://h:6379/0",
        "takeover": 900.0,
        "api.tokens": "tokens.toml",
        "scheduler.tenant_slots": 5,
        "scheduler.ack_wait": 25.0,
        "scheduler.unknown_topic_timeout": 30.0,
        "worker.app": "a:b",
        "worker.pools": ["gpu", "cpu"],
        "limits.pending": 999.0,
        "policy_file": "policy.toml",
        "escalation.classes": ["high", "money"],
        "exercise.family": "workflow.run",
        "approvals.rules": [{"name": "money", "topics": ["pay.*"]}],
        "audit.path": "audit",
        "audit.keep_age": 86_400.0,
        "otel.endpoint": "http://collector:4318",
        "otel.interval": 15.0,
        **{name: 1.5 for name in KEYS if name.endswith("renew_every")},
    }
    values = {name: examples.get(name, key.default) for name, key in KEYS.items() if name != "risk"}
    own = [f"{name} = {json.dumps(value)}" for name, value in values.items() if "." not in name]
    own.append('risk = {low = "wait", high = "fail_open"}')  # the one table whose names are the user's
    for section in SECTIONS:
        own.append(f"[{section}]")
        own += [
            f"{name.partition('.')[2]} = {as_toml(value)}"
            for name, value in values.items()
            if name.startswith(f"{section}.")
        ]
    in_file = loaded(tmp_path, "\n".join(own))
    texts = {
        KEYS[name].variable: ",".join(value) if isinstance(value, list) else str(value)
        for name, value in values.items()
        if name != "approvals.rules"
    }
    texts[KEYS["risk"].variable] = "low=wait, high=fail_open"
    texts[KEYS["approvals.rules"].variable] = json.dumps(values["approvals.rules"])
    in_environment = load(environment=texts, directory=tmp_path / "empty")
    assert in_file == in_environment
    assert {str(in_file.origin(name)).partition(":")[0] for name in KEYS} == {"holdfast.toml"}
    assert {in_environment.origin(name).kind for name in KEYS} == {"environment"}


def as_toml(value: object) -> str:
    """JSON, but for tables: their keys are bound by an equals sign."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {as_toml(each)}' for name, each in value.items())}}}"
    return json.dumps(value)


def test_every_section_of_the_tree_is_declared() -> None:
    made = {each.name: type(getattr(Settings(), each.name)) for each in fields(Settings) if each.name in SECTIONS}
    assert made == SECTIONS
    assert all(is_dataclass(each) for each in made.values())
    assert len({key.variable for key in KEYS.values()}) == len(KEYS), "two keys share a variable"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gracee = 3", "holdfast.toml:1: gracee: is not a key; did you mean grace?"),
        (
            "[scheduler]\nconcurency = 3",
            "holdfast.toml:2: scheduler.concurency: is not a key; did you mean scheduler.c",
        ),
        ("[shceduler]\nconcurrency = 3", "holdfast.toml:1: shceduler: is not a section; did you mean scheduler?"),
        ("concurrency = 3", "did you mean scheduler.concurrency or worker.concurrency or engine.concurrency?"),
        ("quite_something = 3", "remove it"),
        ("\n\n[worker]\ncount = 'two'", "holdfast.toml:4: worker.count: 'two' is out of range; give a whole number"),
        ("[worker]\ncount = true", "worker.count: True is out of range"),
        ("[worker]\ncount = 0", "worker.count: 0 is out of range; give a whole number from 1 to 1000"),
        (
            "grace = 'soon'",
            "holdfast.toml:1: grace: 'soon' is not a length of time; give seconds (30), or a number with",
        ),
        ("grace = '2h'", "grace: 7200 s is out of range; give between 0 and 3600 seconds"),
        ("grace = -1", "grace: -1 s is out of range; give between 0 and 3600 seconds"),
        ("grace = nan", "grace: nan is not a length of time"),
        ("grace = inf", "grace: inf is not a length of time"),
        ("[reconciler]\nlead = 'sometimes'", "reconciler.lead: 'sometimes' is not a choice; use sticky or rotating"),
        ("[worker]\npools = 'gpu'", "worker.pools: 'gpu' is not a list"),
        ("[worker]\npools = ['a', 'a']", "worker.pools: has a name twice"),
        ("[worker]\npools = ['a.b']", "worker.pools: 'a.b' is not a name"),
        ("database = 3", "database: int is not a URL; use sqlite:///plane.db or postgresql://"),
        ("database = 'mysql://h/db'", "database: 'mysql://h/db' cannot be used here"),
        ("database = 'plane.db'", "database: 'plane.db' cannot be used here"),
        ("database = 'sqlite:///'", "database: 'sqlite:///' cannot be used here"),
        ("bus = 'redis://h'", "bus: 'redis://h' cannot be used here; use nats://host:4222"),
        ("worker = 3", "worker: is a section, not a key; write [worker]"),
        ("grace = {a = 1}", "grace: {'a': 1} is not a length of time"),
        ("grace = 3\ngrace = 4", "write it as TOML"),
        ("grace : 3", "at line 1, column"),
        ("[worker", "write it as TOML"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_place_and_a_fix(tmp_path: Path, text: str, said: str) -> None:
    (problem,) = refused(tmp_path, text)
    assert said in problem


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("HOLDFAST_WORKER_COUNT", "two", "$HOLDFAST_WORKER_COUNT (worker.count): 'two' is out of range"),
        ("HOLDFAST_WORKER_COUNT", "1e3", "'1e3' is out of range"),
        ("HOLDFAST_WORKER_COUNT", "9" * 5000, "is out of range"),
        ("HOLDFAST_WORKER_COUNT", "٣", "is out of range"),
        ("HOLDFAST_GRACE", "30x", "'30x' is not a length of time"),
        ("HOLDFAST_GRACE", "nan", "'nan' is not a length of time"),
        ("HOLDFAST_GRACE", "-1", "is out of range"),
        ("HOLDFAST_WORKER_CUONT", "2", "is not a setting; did you mean $HOLDFAST_WORKER_COUNT?"),
        ("HOLDFAST_API_SOMETHING", "2", "is not a setting"),
        ("HOLDFAST_DATABSE", "x", "$HOLDFAST_DATABSE: is not a setting; did you mean $HOLDFAST_DATABASE?"),
        ("HOLDFAST_SCHEDULER", "3", "is not a setting"),
        ("HOLDFAST_PORT", "9000", "is not a setting; did you mean $HOLDFAST_API_PORT?"),
        ("HOLDFAST_WORKER_POOLS", "a,,b", "'' is not a name"),
    ],
)
def test_the_environment_is_read_as_strictly(tmp_path: Path, variable: str, text: str, said: str) -> None:
    (problem,) = refused(tmp_path, None, {variable: text})
    assert said in problem


def test_variables_of_other_commands_are_left_alone(tmp_path: Path) -> None:
    others = {"HOLDFASTER": "x", "HOLDFAST_DRILL_PLACE": "x"} | dict.fromkeys(OTHERS - {CONFIG_VARIABLE}, "x")
    assert loaded(tmp_path, None, others) == Settings()


def test_what_kubernetes_says_of_a_service_named_like_us_is_no_setting(tmp_path: Path) -> None:
    links = {
        "HOLDFAST_SERVICE_HOST": "10.0.0.7",
        "HOLDFAST_SERVICE_PORT": "8420",
        "HOLDFAST_SERVICE_PORT_HTTP": "8420",
        "HOLDFAST_PORT": "tcp://10.0.0.7:8420",
        "HOLDFAST_PORT_8420_TCP": "tcp://10.0.0.7:8420",
        "HOLDFAST_PORT_8420_TCP_ADDR": "10.0.0.7",
    }
    assert loaded(tmp_path, None, links) == Settings()


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    problems = refused(tmp_path, "grace = 'x'\nfoo = 1\n[api]\nport = -1\n", {"HOLDFAST_WORKER_COUNT": "0"})
    assert len(problems) == 4
    with pytest.raises(BadSettings, match=r"and 3 more: holdfast up --check"):
        loaded(tmp_path, None, {"HOLDFAST_WORKER_COUNT": "0"})


def test_a_flag_is_named_as_it_was_typed_and_once(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"^--database: '' cannot be used here"):
        loaded(tmp_path, database="")
    with pytest.raises(BadSettings, match=r"^--url: leases: 'http://h' cannot be used here"):
        loaded(tmp_path, leases=FlagValue("--url", "http://h"))
    with pytest.raises(BadSettings, match=r"^--concurrency: worker.concurrency: 0 is out of range"):
        loaded(tmp_path, worker__concurrency=0)


def test_an_empty_name_of_a_file_is_not_taken_for_none(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="--config: is empty"):
        load("", environment={}, directory=tmp_path)


@pytest.mark.parametrize("kind", ["missing", "directory", "binary", "large", "zero"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, kind: str) -> None:
    path: Path | str = tmp_path / "named.toml"
    assert isinstance(path, Path)
    if kind == "directory":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe")
    elif kind == "large":
        path.write_bytes(b"#" * 1_000_001)
    elif kind == "zero":
        path = "a\0b"
    with pytest.raises(BadSettings, match=r"name a file|name another file"):
        load(path, environment={}, directory=tmp_path)


@given(st.text(max_size=300))
def test_any_text_is_settings_or_a_clear_refusal(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "holdfast.toml")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        problems: tuple[BadInput, ...] | None = None
        try:
            load(path, environment={})
        except BadSettings as error:
            problems = error.problems
        assert problems is None or (problems and all(each.fix for each in problems))


# What cannot work together.


def test_a_state_that_ends_before_it_is_replayed_is_refused(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, "[limits]\nscheduled = 20\n")
    assert problem.startswith("limits.scheduled (holdfast.toml:2): SCHEDULED is timed out after 20 s but replayed only")
    assert (
        loaded(tmp_path, "[limits]\nscheduled = 20\nreplay = 5\n[replayer]\ninterval = 5\n").limits.states.replay_ns
        == 5 * NS
    )


def test_the_default_limits_are_those_of_the_decisions() -> None:
    assert Settings().limits.states == StateLimits()


@pytest.mark.requires("R116")
def test_a_takeover_that_the_ttls_cannot_keep_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    problems = refused(tmp_path, "takeover = 30\n")
    assert any(each.startswith("takeover (holdfast.toml:1)") and "its lock lasts 60 s" in each for each in problems)
    assert any("promise at least 60.5" in each for each in problems)
    bounds = {each.what: each.seconds for each in takeovers(Settings())}
    assert bounds["a job that a scheduler was deciding"] == 60.5
    assert bounds["a job that a worker was running"] == 30.5
    assert bounds["the reconciler loop"] == 90.0
    assert loaded(tmp_path, "takeover = 90\n").takeover == 90.0


@pytest.mark.requires("R121", "R116")
def test_an_ack_wait_beyond_the_promised_takeover_is_refused(tmp_path: Path) -> None:
    """W34: the message, and not the lock, would decide how soon a job is taken over."""
    (alone,) = refused(tmp_path, "[scheduler]\nack_wait = 600\n")
    assert alone == (
        "scheduler.ack_wait (holdfast.toml:2): the lock of a dead scheduler lasts 60 s and its message is silent for "
        "600 s, so others would have the job after 600 s and not 60; use at most 60 s for ack_wait"
    )
    problems = refused(tmp_path, "takeover = 100\n[scheduler]\nack_wait = 600\n")
    assert ["scheduler.ack_wait (holdfast.toml:3)" in each for each in problems] == [True, True]


@pytest.mark.requires("R121")
def test_the_time_of_a_job_lock_is_a_setting_from_which_ack_wait_and_the_takeover_follow(tmp_path: Path) -> None:
    assert Settings().scheduler.silence == 30.0
    loops = "[reconciler]\ninterval = 10\n[replayer]\ninterval = 10\n"
    quick = loaded(tmp_path, f"takeover = 45\n[scheduler]\njob_ttl = 20\n{loops}")
    assert (quick.scheduler.silence, quick.shown()["scheduler.ack_wait"]["value"]) == (10.0, 10.0)
    bounds = {each.what: each for each in takeovers(quick)}
    assert bounds["a job that a scheduler was deciding"].seconds == 20.5
    (problem,) = refused(tmp_path, "[scheduler]\njob_ttl = 4\n")
    assert (
        "its message is redelivered after 2 s (half of job_ttl); use more than 2 s, or a job_ttl above 4 s" in problem
    )
    lines = {line.family: line for line in inventory(quick)}
    assert (lines["scheduler.job"].ttl, round(lines["scheduler.job"].renew_every or 0, 2)) == (20.0, 6.67)


@pytest.mark.requires("R158", "R165", "R168")
def test_jitter_is_off_by_default_on_by_a_setting_and_bounded_by_the_ttl(tmp_path: Path) -> None:
    assert Settings().scheduler.delays.busy == Fixed(500 * MS)
    assert Settings().scheduler.delays.backend == Fixed(NS)
    on = loaded(tmp_path, None, {"HOLDFAST_SCHEDULER_BUSY_JITTER": "0.2"}).scheduler.delays
    assert on.busy == Jittered(500 * MS, 200 * MS)
    assert on.backend == Fixed(NS)
    (problem,) = refused(tmp_path, "[scheduler]\nbusy_jitter = 0.5\n")
    assert "a jitter of 0.5 s is not below the delay of 0.5 s" in problem
    (problem, *_) = refused(tmp_path, "[scheduler]\nbusy_delay = 20\nbusy_jitter = 15\n")
    assert "safety budget" in problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[scheduler]\nbusy_delay = 45\n", "a retry would come after the lease"),
        ("[scheduler]\nack_wait = 1.5\n", "a handler may wait 2 s for a lock"),
        ("[worker]\nheartbeat = 20\n", "a worker counts as dead after 30 s"),
        ("grace = 2\n", "a cancelled function may run for 5 s, and the plane stops within 2 s"),
        ("leases = 'memory://'\n", "memory://"),
        ("leases = 'memory://x'\n", "memory:// is private to one process"),
        ("[cleanup]\nkeys = 60\n", "a key would be deleted before its job"),
        ("[replayer]\ninterval = 95\n", "until the replayer comes round"),
        ("[api]\nhost = '0.0.0.0'\n", "no tokens authenticate callers"),
        ("[probe]\nhost = '0.0.0.0'\n", "probe.host (holdfast.toml:2): 0.0.0.0 can be reached from other hosts"),
    ],
)
def test_combinations_that_cannot_work_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (problem,) = refused(tmp_path, text)
    assert said in problem


def test_a_plane_on_postgres_alone_keeps_its_leases_there(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "database = 'postgresql://h/db?sslmode=require'\n")
    assert settings.lease_url == settings.database_url == "postgresql://h/db?sslmode=require"
    assert settings.leases_in_database


def test_postgres_with_leases_elsewhere_is_a_plane(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "database = 'postgresql://h/db'\nleases = 'redis://h'\nbus = 'nats://h:4222'\n")
    assert (settings.database_url, settings.lease_url) == ("postgresql://h/db", "redis://h")


def test_options_of_the_database_are_not_passed_to_the_leases(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "database = 'sqlite:///a.db?synchronous=normal'\n")
    assert settings.lease_url == "sqlite:///a.db"


# Secrets.


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("database", f"postgresql://me:{SECRET}@h/db"),
        ("bus", f"nats://me:{SECRET}@h:4222"),
        ("leases", f"redis://:{SECRET}@h:6379/0"),
        ("database", f"mysql://me:{SECRET}@h/db"),
        ("bus", f"nats:/me:{SECRET}@h"),
    ],
)
def test_a_password_is_never_shown(tmp_path: Path, key: str, url: str) -> None:
    try:
        text = json.dumps(loaded(tmp_path, None, {f"HOLDFAST_{key.upper()}": url}).shown())
        assert "***" in text
    except BadSettings as error:
        text = str(error) + "".join(map(str, error.problems))
    assert SECRET not in text
