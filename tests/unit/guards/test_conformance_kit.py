"""The kit is only worth something if a guard that is wrong fails it. Each mutant must be found, by name."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.guards.conformance import (
    CHECKS,
    Check,
    Nonconforming,
    Violation,
    check_guard,
    checks_for,
    crashes,
    run_check,
)
from holdfast.guards.conformance.environment import BlockingGuardWorld
from support.guards.reference_guard import AsyncFileGuard, FileGuard, opened_slowly
from support.load.processes import LIMIT_S, environment
from unit.guards import mutants

BY_NAME = {check.name: check for check in CHECKS}

BUGS: list[tuple[type[FileGuard], str]] = [
    (mutants.ChecksWritesOnly, "a lower write is refused after a higher enter"),
    (mutants.DemandsAGreaterFence, "the same fence writes as often as it likes"),
    (mutants.IgnoresWhatTheSameFenceWritesAgain, "the same fence writes as often as it likes"),
    (mutants.ComparesAsText, "neighbouring fences are told apart over the whole range"),
    (mutants.ComparesAsFloats, "neighbouring fences are told apart over the whole range"),
    (mutants.KeepsAFloat, "neighbouring fences are told apart over the whole range"),
    (mutants.Keeps32Bits, "neighbouring fences are told apart over the whole range"),
    (mutants.ForgetsWhatItDeletes, "deleting leaves a memory"),
    (mutants.DeletesUnchecked, "a lower delete is refused and changes nothing"),
    (mutants.StampsBeforeItChecks, "a lower write is refused and changes nothing"),
    (mutants.WritesBeforeItChecks, "a lower write is refused and changes nothing"),
    (mutants.NamesTheWrongFence, "a lower write is refused and changes nothing"),
    (mutants.SwallowsTheRefusal, "a lower write is refused and changes nothing"),
    (mutants.AsksForTheFenceAgain, "who was refused stays refused"),
    (mutants.RegistersOnlyWhatExists, "entering what does not exist is remembered"),
    (mutants.EntersUnchecked, "a lower enter is refused and changes nothing"),
    (mutants.TrustsItsSections, "a section ends when a newer holder enters"),
    (mutants.TrustsItsSections, "a section ends when a newer holder writes"),
    (mutants.TrustsItsSections, "a section cannot bring back what a newer holder deleted"),
    (mutants.TakesAnythingForANumber, "what is not a fence is refused and changes nothing"),
    (mutants.TakesANumberForALease, "what is not a lease is refused and changes nothing"),
    (mutants.TakesNoFenceForTheNewest, "a lease without a fence is refused by default"),
    (mutants.TakesZeroForNothing, "a first fence of 0 is a fence"),
    (mutants.RemembersInMemory, "what was seen outlives every connection"),
    (mutants.SharesOneFence, "resources do not share their fences"),
    (mutants.StripsValues, "a value comes back as it was written"),
    (mutants.TakesEmptyForAbsent, "a value comes back as it was written"),
    (mutants.ChecksAndWritesInTwoSteps, "concurrent writers lose no acknowledged update"),
    (mutants.ChecksAndWritesInTwoSteps, "concurrent writers never leave a lower fence on top"),
    (mutants.ChecksAndWritesInTwoSteps, "concurrent processes never leave a lower fence on top"),
    (mutants.ReadsBeforeItRegisters, "concurrent writers lose no acknowledged update"),
    (mutants.ReadsBeforeItRegisters, "concurrent processes lose no acknowledged update"),
    (mutants.WritesTheValueFirst, "a writer that dies between two steps leaves value and fence consistent"),
    (mutants.DeletesTheMemoryFirst, "a deleter that dies between two steps leaves value and fence consistent"),
    (
        mutants.WritesTheValueFirstInSilence,
        "a writer that is killed at any moment loses nothing that was acknowledged",
    ),
    (mutants.TearsValues, "a writer that is killed at any moment loses nothing that was acknowledged"),
    (mutants.AcknowledgesBeforeItWrites, "a writer that is killed at any moment loses nothing that was acknowledged"),
]


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_a_guard_that_is_right_passes(check: Check, tmp_path: Path) -> None:
    run_check(check, partial(FileGuard, str(tmp_path)))


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_an_awaited_guard_that_is_right_passes(check: Check, tmp_path: Path) -> None:
    run_check(check, partial(AsyncFileGuard, str(tmp_path)), asynchronous=True)


@pytest.mark.parametrize(
    ("guard", "sentence"), [pytest.param(*bug, id=f"{bug[0].__name__}-{bug[1]}".replace(" ", "_")) for bug in BUGS]
)
def test_a_planted_bug_is_found_by_the_sentence_it_breaks(
    guard: type[FileGuard], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(Violation) as raised:
        run_check(BY_NAME[sentence], partial(guard, str(tmp_path)))
    assert "another process" not in str(raised.value), "the bug is found by what it does, not because it falls over"


@pytest.mark.parametrize(
    ("guard", "sentence"),
    [
        (mutants.ChecksWritesOnly, "a lower write is refused after a higher enter"),
        (mutants.ChecksWritesOnly, "concurrent writers lose no acknowledged update"),
        (mutants.WritesTheValueFirst, "a writer that dies between two steps leaves value and fence consistent"),
    ],
)
def test_a_planted_bug_is_found_in_an_awaited_guard_too(guard: type[FileGuard], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Violation):
        run_check(BY_NAME[sentence], partial(AsyncFileGuard, str(tmp_path), guard=guard), asynchronous=True)


def test_every_sentence_but_the_plainest_has_a_bug_that_breaks_it() -> None:
    """What no bug breaks proves nothing. What is left out here is what any guard has to do to be of use at all."""
    plain = {
        "rising fences are accepted in order",
        "entering leaves the value as it is",
        "what was deleted can be made again by its deleter and by newer holders",
        "the fence of a held lease is what is remembered",
    }
    assert set(BY_NAME) - {sentence for _, sentence in BUGS} == plain


def test_a_lock_that_a_dead_writer_left_behind_is_found_and_not_waited_for_for_ever(tmp_path: Path) -> None:
    world = BlockingGuardWorld(partial(mutants.LeavesItsLockBehind, str(tmp_path)), patience_s=2.0)
    [check] = [each for each in crashes.chapter.checks if each.name.startswith("a writer that dies")]
    with pytest.raises(Violation, match="did not come back within 2 s"):
        world.drive(check.run(world))
    for lock in tmp_path.glob("*.lock"):
        lock.unlink()  # so that the thread that was given up can end


def test_the_whole_kit_reports_what_it_has_proven_and_what_it_left_out(tmp_path: Path) -> None:
    report = check_guard(partial(opened_slowly, str(tmp_path)), asynchronous=True, deletes=False, processes=False)
    assert set(report.proven) == {check.name for check in CHECKS if not check.deletes and not check.processes}
    assert set(report.proven) | set(report.left_out) == set(BY_NAME)
    assert len(report.proven) + len(report.left_out) == len(CHECKS)


def test_a_guard_that_is_wrong_is_told_every_sentence_that_it_breaks(tmp_path: Path) -> None:
    with pytest.raises(Nonconforming) as raised:
        check_guard(partial(mutants.ComparesAsFloats, str(tmp_path)), processes=False, threads=2)
    broken = [name for name, _ in raised.value.broken]
    assert broken == ["neighbouring fences are told apart over the whole range"]
    assert all(f"- {name}\n" in str(raised.value) for name in broken)
    assert str(raised.value).startswith(f"{len(broken)} sentences of the contract do not hold")
    with pytest.raises(Nonconforming) as raised:
        check_guard(partial(mutants.StampsBeforeItChecks, str(tmp_path)), processes=False, threads=2)
    assert {name for name, _ in raised.value.broken} >= {
        "a lower write is refused and changes nothing",
        "who was refused stays refused",
    }


def test_a_delete_is_never_asked_of_a_guard_that_cannot(tmp_path: Path) -> None:
    assert not [check for check in checks_for(deletes=False) if "delete" in check.name]
    assert not [check for check in checks_for(processes=False) if "process" in check.name or "dies" in check.name]
    assert checks_for() == list(CHECKS)


def test_a_factory_that_cannot_travel_is_refused_before_anything_runs(tmp_path: Path) -> None:
    def local(resource: str) -> FileGuard:
        return FileGuard(str(tmp_path), resource)

    with pytest.raises(BadInput, match=r"factory: cannot be sent to another process .* processes=False"):
        check_guard(local)
    assert list(tmp_path.iterdir()) == []
    assert check_guard(local, processes=False, threads=3).proven


@pytest.mark.parametrize("threads", [1, 0, -1, 257, True, "8", 2.0, None])
def test_a_number_of_writers_that_proves_nothing_is_refused(threads: int, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="threads"):
        check_guard(partial(FileGuard, str(tmp_path)), threads=threads)


def test_what_is_not_a_factory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="factory: FileGuard is not a function"):
        check_guard(FileGuard(str(tmp_path), "one"))  # type: ignore[arg-type]


def test_an_asyncio_guard_given_as_a_sync_one_is_found_immediately(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="one of its ports is not blocking"):
        run_check(CHECKS[0], partial(AsyncFileGuard, str(tmp_path)))


def test_the_kit_runs_from_a_plain_script(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "from functools import partial\n"
        "from support.guards.reference_guard import FileGuard\n"
        "from holdfast.guards.conformance import check_guard\n"
        "class Mine(FileGuard):\n"
        "    pass\n"
        "if __name__ == '__main__':\n"
        f"    report = check_guard(partial(Mine, {str(tmp_path)!r}))\n"
        "    print(len(report.proven), len(report.left_out))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment(), timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, [str(len(CHECKS)), "0"]), done.stderr


def test_a_script_that_forgets_its_main_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "from functools import partial\n"
        "from support.guards.reference_guard import FileGuard\n"
        "from holdfast.guards.conformance import CHECKS, run_check\n"
        "check = next(each for each in CHECKS if each.processes)\n"
        f"run_check(check, partial(FileGuard, {str(tmp_path)!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment(), timeout=LIMIT_S, check=False
    )
    assert done.returncode != 0
    assert 'a script that runs the kit needs `if __name__ == "__main__":`' in done.stderr
