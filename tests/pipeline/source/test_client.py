import attrs
import pytest

from mist.pipeline.source.address import Address
from mist.pipeline.source.client import (
    COMMIT_RETRY_TIMEOUT,
    COMMIT_TIMEOUT,
    RETRY_TIMEOUT,
    TIMEOUT,
    Client,
)
from mist.pipeline.source.errors import ServerRefused, ServerUnavailable
from tests.pipeline.source.fake import Fake, Handler, faking


@attrs.define
class Clock:
    """Time that passes while somebody sleeps, and only then."""

    now: float = 0.0
    slept: list[float] = attrs.field(factory=list)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    def client(self, address: Address) -> Client:
        return Client(address, clock=lambda: self.now, sleep=self.sleep)


def address_of(fake: Fake, secret: str | None = None) -> Address:
    return Address.parse(fake.url, secret, None)


def fail(times: int, fault: object) -> object:
    left = [times]

    def once_more(handler: Handler) -> bool:
        left[0] -= 1
        if left[0] < 0:
            return False
        return fault(handler)  # type: ignore[operator,no-any-return]

    return once_more


def busy(status: int) -> object:
    def fault(handler: Handler) -> bool:
        handler.answer(status, {"code": "busy", "detail": "try later"})
        return True

    return fault


def hang_up(handler: Handler) -> bool:
    handler.close_connection = True
    return True


def stop_in_the_middle(handler: Handler) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b"{")
    handler.close_connection = True
    return True


def test_one_connection_serves_many_requests() -> None:
    ports = set()
    with faking() as fake, Client(address_of(fake)) as client:
        fake.faults.append(lambda handler: bool(ports.add(handler.client_address[1])))  # type: ignore[func-returns-value]
        for _ in range(3):
            assert client.request("GET", "/v1/log/position").json()["epoch"] == "e1"
    assert len(ports) == 1


@pytest.mark.parametrize(
    "fault", [busy(503), busy(429), busy(502), busy(504), hang_up, stop_in_the_middle]
)
def test_a_request_is_repeated_until_there_is_an_answer(fault: object) -> None:
    clock = Clock()
    with faking() as fake, clock.client(address_of(fake)) as client:
        fake.faults.append(fail(3, fault))  # type: ignore[arg-type]
        assert client.request("GET", "/v1/log/position").json()["epoch"] == "e1"
        assert len(fake.requests) == 4
    assert len(clock.slept) == 3
    assert clock.slept == sorted(clock.slept)


def test_an_answer_that_does_not_come_is_asked_for_again() -> None:
    clock = Clock()
    with faking() as fake:
        fake.faults.append(fail(1, lambda handler: True))  # type: ignore[arg-type]
        with Client(
            address_of(fake), timeout=0.2, clock=lambda: clock.now, sleep=clock.sleep
        ) as client:
            assert client.request("GET", "/v1/log/position").json()["epoch"] == "e1"
        assert len(fake.requests) == 2


def test_what_hangs_is_tried_more_than_once() -> None:
    assert TIMEOUT < RETRY_TIMEOUT / 2
    assert COMMIT_TIMEOUT < COMMIT_RETRY_TIMEOUT / 2


def test_the_server_says_how_long_to_wait() -> None:
    clock = Clock()

    def later(handler: Handler) -> bool:
        handler.raw(429, b"", {"Retry-After": "3"})
        return True

    with faking() as fake, clock.client(address_of(fake)) as client:
        fake.faults.append(fail(1, later))  # type: ignore[arg-type]
        client.request("GET", "/v1/log/position")
    assert clock.slept == [3.0]


def test_retries_end_with_one_line() -> None:
    clock = Clock()
    with faking() as fake:
        address = address_of(fake)
    with clock.client(address) as client, pytest.raises(ServerUnavailable) as caught:
        client.request("GET", "/v1/log/position")
    assert str(caught.value) == (
        f"127.0.0.1:{address.port} gave no answer for 60 s: Connection refused"
    )
    assert RETRY_TIMEOUT - 5 <= clock.now <= RETRY_TIMEOUT
    assert max(clock.slept) <= 5


def test_an_answer_that_is_no_is_not_asked_for_again() -> None:
    with faking() as fake, Client(address_of(fake)) as client:
        with pytest.raises(ServerRefused) as caught:
            client.request("GET", "/v1/log", {"after": 0, "limit": 1, "epoch": "other"})
        assert len(fake.requests) == 1
    assert (caught.value.status, caught.value.problem) == (410, "epoch_changed")
    assert str(caught.value).endswith("answered 410 epoch_changed: another log")


def test_an_answer_from_something_else_is_told_as_it_is() -> None:
    def page(handler: Handler) -> bool:
        handler.raw(404, b"<html>not here</html>", {})
        return True

    with faking() as fake, Client(address_of(fake)) as client:
        fake.faults.append(page)
        with pytest.raises(ServerRefused, match="answered 404 an error"):
            client.request("GET", "/v1/log/position")


def test_a_secret_goes_as_utf8_and_is_in_no_error() -> None:
    secret = "geheimnisvoll-ß"
    with faking() as fake, Client(address_of(fake, secret)) as client:
        client.request("GET", "/v1/log/position")
        _, _, headers = fake.requests[0]
        assert headers["Authorization"].encode("latin-1").decode() == f"Bearer {secret}"
        with pytest.raises(ServerRefused) as caught:
            client.request("GET", "/v1/nothing")
    assert "geheim" not in repr(caught.value)
