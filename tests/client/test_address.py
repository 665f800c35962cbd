"""A server's URL, and what it leaves out."""

from mist.client.address import Address


def test_an_address_fills_in_what_a_url_leaves_out() -> None:
    assert Address.parse("tcp://h") == Address("tcp", host="h", port=1445)
    assert Address.parse("tcps://[::1]:5").authority == "[::1]:5"
    assert Address.parse("ws://h").resource == "/subscribe/websocket"
    assert Address.parse("wss://h/x?ticket=1") == Address(
        "ws", tls=True, host="h", port=8888, resource="/x?ticket=1"
    )
    assert Address.parse("tcp+unix:///a%20b").path == "/a b"
    assert "ticket" not in repr(Address.parse("ws://h/?ticket=1"))
