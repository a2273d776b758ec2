"""Each fault of the proxy, seen from both ends of a connection through it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from holdfast.drills.env import proxy as module
from holdfast.testing.proxy import FaultProxy

LIMIT_S = 20.0


class Server:
    """Accepts connections, and gives them to the test."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(LIMIT_S)
        self.port: int = self.listener.getsockname()[1]

    def accept(self) -> socket.socket:
        end, _ = self.listener.accept()
        end.settimeout(LIMIT_S)
        return end


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.listener.close()


def dial(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), LIMIT_S)


def receive(end: socket.socket, size: int) -> bytes:
    """So many bytes, or what came before the end of the stream."""
    data = b""
    while len(data) < size and (more := end.recv(size - len(data))):
        data += more
    return data


def between(monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]) -> None:
    """Inject it once, when the server has been reached and the proxy does not forward yet."""
    faults, reached = [fault], module._reached

    def reached_then(target: str | tuple[str, int]) -> socket.socket | None:
        end = reached(target)
        while faults:
            faults.pop()()
        return end

    monkeypatch.setattr(module, "_reached", reached_then)


def test_without_a_fault_both_directions_and_their_ends_are_forwarded(server: Server) -> None:
    with FaultProxy(server.port) as proxy, dial(proxy) as client, server.accept() as other:
        client.sendall(b"question")
        assert receive(other, 8) == b"question"
        client.shutdown(socket.SHUT_WR)
        assert other.recv(1) == b""
        other.sendall(b"answer")  # one direction has ended, the other one has not
        other.close()
        assert receive(client, 7) == b"answer"
        assert proxy.accepted == 1


def test_what_is_dropped_is_lost_and_the_connection_stays(server: Server) -> None:
    with FaultProxy(server.port) as proxy, dial(proxy) as client, server.accept() as other:
        proxy.drop("to_server")
        client.sendall(b"lost")
        other.sendall(b"heard")  # the other direction works
        assert receive(client, 5) == b"heard"
        while proxy.dropped < 4:
            pass
        proxy.mend()
        client.sendall(b"seen")
        assert receive(other, 4) == b"seen"


def test_what_is_duplicated_arrives_twice(server: Server) -> None:
    with FaultProxy(server.port) as proxy, dial(proxy) as client, server.accept() as other:
        proxy.duplicate("to_client")
        other.sendall(b"once")
        assert receive(client, 8) == b"onceonce"
        client.sendall(b"once")
        assert receive(other, 4) == b"once"


def test_what_is_truncated_ends_after_so_many_bytes(server: Server) -> None:
    with FaultProxy(server.port) as proxy, dial(proxy) as client, server.accept() as other:
        proxy.truncate("to_client", 3)
        other.sendall(b"answer")
        assert receive(client, 6) == b"ans"
        client.close()
        assert other.recv(1) == b""


def test_a_half_open_connection_says_nothing_and_new_ones_work(server: Server) -> None:
    with FaultProxy(server.port) as proxy, dial(proxy) as client, server.accept() as other:
        proxy.half_open()
        client.sendall(b"unheard")
        proxy.wait_held("to_server")
        other.sendall(b"unheard")
        proxy.wait_held("to_client")
        with dial(proxy) as second, server.accept() as another:
            second.sendall(b"heard")
            assert receive(another, 5) == b"heard"
        proxy.reset()
        for end in (client, other):
            with pytest.raises(ConnectionResetError):
                end.recv(1)


@pytest.mark.parametrize("fault", [FaultProxy.half_open, FaultProxy.resume_for_new])
def test_a_connection_that_is_still_being_made_becomes_half_open_too(
    server: Server, monkeypatch: pytest.MonkeyPatch, fault: Callable[[FaultProxy], None]
) -> None:
    with FaultProxy(server.port) as proxy:
        between(monkeypatch, lambda: fault(proxy))
        with dial(proxy) as client, server.accept():
            client.sendall(b"unheard")
            proxy.wait_held("to_server")
            with dial(proxy) as second, server.accept() as another:
                second.sendall(b"heard")
                assert receive(another, 5) == b"heard"


def test_a_connection_that_is_still_being_made_is_reset_too(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultProxy(server.port) as proxy:
        between(monkeypatch, proxy.reset)
        with dial(proxy) as client, server.accept() as other:
            for end in (client, other):
                with pytest.raises(ConnectionResetError):
                    end.recv(1)


def test_a_connection_that_is_never_answered_is_open_and_is_reset_in_the_end(server: Server) -> None:
    with FaultProxy(server.port) as proxy:
        proxy.answer_nothing()
        with dial(proxy) as client:
            client.sendall(b"hello?")
            while not proxy.accepted:
                pass
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.settimeout(LIMIT_S)
            proxy.mend()
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        with dial(proxy) as client, server.accept() as other:
            other.sendall(b"here")
            assert receive(client, 4) == b"here"


def test_a_stalled_direction_is_forwarded_later_and_a_reset_loses_it(server: Server) -> None:
    with FaultProxy(server.port) as proxy, dial(proxy) as client, server.accept() as other:
        proxy.stall("to_server")
        client.sendall(b"late")
        proxy.wait_held("to_server")
        proxy.resume()
        assert receive(other, 4) == b"late"
        proxy.stall("to_server")
        client.sendall(b"lost")
        proxy.wait_held("to_server")
        proxy.resume_after_reset()
        with pytest.raises(ConnectionResetError):
            other.recv(1)


def test_a_proxy_that_is_cut_refuses_until_it_is_mended(server: Server) -> None:
    with FaultProxy(("127.0.0.1", server.port)) as proxy, dial(proxy) as client, server.accept():
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        with pytest.raises(ConnectionError), dial(proxy) as refused:
            assert refused.recv(1) == b""
            raise ConnectionResetError  # the end of the stream is a refusal too
        proxy.mend()
        with dial(proxy) as again, server.accept() as other:
            again.sendall(b"back")
            assert receive(other, 4) == b"back"
