"""A reply of a size or a protocol that no reply to us has is refused by its header, before anything is made of it."""

from __future__ import annotations

import pytest

from holdfast.stores.redis.protocol import ProtocolError, ReplyReader

VAST = [
    *(b"*2147483647\r\n", b"*1\r\n*1000000\r\n", b":1\r\n*9999999\r\n", b"*0000000001\r\n", b"$999999999\r\n"),
    b"$6\r\nab\r\n$8\r\n*2147483647\r\n",  # what stands in a text is no header
]
OTHER = [b"#t\r\n", b":1\r\n,1\r\n", b"*1\r\n%1\r\n*1\r\n:5\r\n", b"~1\r\n*0\r\n", b"(x\r\n", b"_\r\n", b">1\r\n:1\r\n"]


def fed(data: bytes, size: int) -> list[object]:
    reader, found = ReplyReader(), list[object]()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
        while (reply := reader.gets()) is not False:
            found.append(reply)
    return found


@pytest.mark.threat("X17")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("data", VAST, ids=lambda data: data.decode().strip())
def test_a_vast_header_is_refused_however_it_is_cut(data: bytes, size: int) -> None:
    with pytest.raises(ProtocolError, match="impossible size"):
        fed(data, size)


@pytest.mark.threat("X17")
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("data", OTHER, ids=lambda data: data.decode().strip())
def test_a_reply_of_another_protocol_is_refused(data: bytes, size: int) -> None:
    with pytest.raises(ProtocolError, match="RESP2"):
        fed(data, size)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_what_only_looks_like_a_vast_header_is_read(size: int) -> None:
    names = [b"*1234567\r\n*9999999", b"_kombu.binding.celery", b"%1", b"$999999999", b"#t", b""]
    data = b"*%d\r\n" % len(names) + b"".join(b"$%d\r\n%s\r\n" % (len(name), name) for name in names)
    assert fed(data + b":9999999\r\n$-1\r\n*0\r\n*-1\r\n", size) == [names, 9_999_999, None, [], None]
