"""How `holdfast worker` starts: it says at once that a store is not there, and hears that it should end."""

from __future__ import annotations

import pytest

from cli.planes import furnish
from cli.sessions import Shell
from servers import free_port


@pytest.fixture
def furnished(shell: Shell) -> Shell:
    furnish(shell)
    return shell


def test_a_lease_store_that_is_not_there_at_the_start_is_69(furnished: Shell) -> None:
    place = f"redis://127.0.0.1:{free_port()}/0"
    done = furnished.finish(furnished.start("worker", "works:app", "--url", place))
    assert (done.code, done.out) == (69, "")
    assert "takes jobs" not in done.err
    assert "127.0.0.1" in done.err.splitlines()[-1]
