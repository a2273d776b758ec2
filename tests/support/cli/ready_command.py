"""The `holdfast` command, loaded once: each time it is asked, it forks a process that becomes the command.

Run as `python ready_command.py PACKAGE…`, with a socket as standard input; it imports all modules of these packages.
A request is one message: JSON with `words`, `directory` and `environment`, and four descriptors, which are the
command's standard input, output and error, and a place for its process id and, on the next line, its return code. Ends
when the other side of the socket is closed.

A fork is all that is saved: the process runs `python -m holdfast` from its first line to the end of its interpreter.
Nothing is opened and no thread is started before.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import socket
import sys
import threading

REQUEST_MAX = 1 << 17


def load(packages: list[str]) -> None:
    """Import what commands import."""
    for package in packages:
        path = importlib.import_module(package).__path__
        for module in pkgutil.iter_modules(path, f"{package}."):
            importlib.import_module(module.name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        become(["locks", "--help"])
    assert threading.active_count() == 1, "a fork would lose a thread"
    gc.collect()
    gc.freeze()  # or each child would look through all of this again, and copy it by that


def become(words: list[str]) -> None:
    """Be `python -m holdfast`."""
    sys.argv[:] = ["holdfast", *words]
    runpy.run_module("holdfast", run_name="__main__", alter_sys=True)


def received(line: socket.socket) -> tuple[bytes, list[int]]:
    """A request and its descriptors."""
    message, extra, _, _ = line.recvmsg(REQUEST_MAX, socket.CMSG_SPACE(4 * array.array("i").itemsize))
    files = array.array("i")
    for _, _, data in extra:
        files.frombytes(data)
    return message, list(files)


def serve(line: socket.socket) -> list[str] | None:
    """Fork for every request. Returns in a child, with its words; and here, with none, at the end."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(line, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.data is not None:
                    waiting.unregister(key.fd)
                    os.close(key.fd)
                    told(*key.data)
                    continue
                message, files = received(line)
                if not message:
                    return None
                pid = os.fork()
                if pid == 0:
                    line.close()
                    for other in [*waiting.get_map().values()]:
                        if other.data is not None:  # what belongs to the commands that run
                            os.close(other.fd)
                            os.close(other.data[1])
                    return dressed(json.loads(message), files)
                *theirs, status = files
                for file in theirs:
                    os.close(file)
                os.write(status, f"{pid}\n".encode())
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))


def told(pid: int, status: int) -> None:
    """Say how a command ended."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, f"{code}\n".encode())
    os.close(status)


def dressed(request: dict[str, object], files: list[int]) -> list[str]:
    """In a child: take on what was requested. Returns the words."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    directory, environment, words = request["directory"], request["environment"], request["words"]
    assert isinstance(directory, str)
    assert isinstance(environment, dict)
    assert isinstance(words, list)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = directory
    sys.path[1:1] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in sys.path]
    return words


if __name__ == "__main__":
    load(sys.argv[1:])
    with socket.socket(fileno=os.dup(0)) as asked:
        words = serve(asked)
    if words is not None:
        become(words)
