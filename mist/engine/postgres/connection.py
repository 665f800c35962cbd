"""A connection to PostgreSQL: libpq without blocking, on trio, with a deadline on every wait.

libpq (`psycopg.pq`) speaks the protocol and waits for nothing: this module waits for its socket. So
no thread is held by a server that is stopped, or a network that swallows packets: the one scope of
a call covers the sending and the reply, and ends both. What megabytes take is added as they move:
a peer that is slow gets time, one that is frozen does not.

A call that was given up is never canceled at the server: a cancel that meets a commit which waits
for a synchronous standby has it acknowledged without that standby.
"""

import array
import fcntl
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import trio
from psycopg import OperationalError, pq
from psycopg.conninfo import make_conninfo

from mist.engine.addresses import Address
from mist.engine.contract import EngineUnavailable
from mist.engine.postgres.errors import ConnectionLost, ServerError, connection_error
from mist.engine.postgres.location import Location

__all__ = ["Connection", "Row", "Value", "dial"]

Value: TypeAlias = "int | str | bytes | bool | Sequence[bytes | None]"
Cell: TypeAlias = "int | str | bytes | bool | list[bytes | None] | None"
Row: TypeAlias = Sequence[Cell]

_SLOWEST: Final = 4 << 20  # bytes a second of large values

# Of one server it is told what is wrong with it, in words of our own; see `requirements`. Not
# libpq's `target_session_attrs`, which believes a pooler that repeats what a server said earlier.
_BE_PRIMARY: Final = """
DO $$ BEGIN
  IF current_setting('transaction_read_only')::bool THEN RAISE read_only_sql_transaction; END IF;
END $$;
"""

# Object identifiers of types; see `pg_type.dat`.
_BOOL, _BYTEA, _INT8, _TEXT, _BYTEAS = 16, 17, 20, 25, 1001
_ARRAY: Final = struct.Struct(">iiIii")  # dimensions, whether it has NULL, type, length, first


class Connection:
    """A connection that is open. One call at a time.

    Attributes:
        notified: whether a notification has come since this was last set to False.
    """

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self.notified = False
        self._pgconn = pgconn

    async def ask(
        self, statement: str, values: Sequence[Value], scope: trio.CancelScope
    ) -> list[Row]:
        """Have one statement done, in a transaction of its own, and return its rows.

        Not to be used again where this is cancelled, or has raised `ConnectionLost`.

        Args:
            values: of $1, $2, …
            scope: has the deadline, which is moved as bytes are.

        Raises:
            ConnectionLost, ServerError: see there.
        """
        encoded = [_encode(each) for each in values]
        try:
            self._pgconn.send_query_params(
                statement.encode(),
                [value for value, _ in encoded],
                [kind for _, kind in encoded],
                [pq.Format.BINARY] * len(values),
                pq.Format.BINARY,
            )
            (result,) = await self._exchange(scope)
        except OperationalError:
            raise ConnectionLost("the connection is broken") from None
        return list(_rows(result))

    async def run(self, script: str, scope: trio.CancelScope) -> None:
        """Have statements done, all in one transaction, or none.

        Raises:
            ConnectionLost, ServerError: see there.
        """
        try:
            self._pgconn.send_query(script.encode())
            await self._exchange(scope)
        except OperationalError:
            raise ConnectionLost("the connection is broken") from None

    async def _exchange(self, scope: trio.CancelScope) -> list[pq.abc.PGresult]:
        """Send what libpq has, and wait for all results."""
        pgconn = self._pgconn
        while pgconn.flush():
            await trio.lowlevel.wait_writable(pgconn.socket)
            # The kernel says so once a third of its buffer is free: half of what is in it has gone.
            scope.deadline += _queued(pgconn.socket, termios.TIOCOUTQ) / 2 / _SLOWEST
        scope.deadline += _queued(pgconn.socket, termios.TIOCOUTQ) / _SLOWEST
        results: list[pq.abc.PGresult] = []
        error: ServerError | None = None
        while True:
            while pgconn.is_busy():
                await self._receive(scope)
            result = pgconn.get_result()
            if result is None:
                break
            if result.status == pq.ExecStatus.FATAL_ERROR:
                error = error or _error(result)
            results.append(result)
        self._take_notifications()
        if pgconn.status == pq.ConnStatus.BAD:
            raise ConnectionLost(str(error) if error else "it has closed the connection")
        if error is not None:
            if error.ends_connection:
                raise ConnectionLost(str(error))
            raise error
        return results

    async def wait(self, seconds: float, scope: trio.CancelScope) -> None:
        """Wait for a notification, for a time. A checkpoint.

        Raises:
            ConnectionLost: see there.
        """
        self._take_notifications()
        if self.notified:
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(seconds):
            while not self.notified:
                try:
                    await self._receive(scope)
                except OperationalError:
                    raise ConnectionLost("it has closed the connection") from None
                self._take_notifications()

    async def _receive(self, scope: trio.CancelScope) -> None:
        pgconn = self._pgconn
        await trio.lowlevel.wait_readable(pgconn.socket)
        scope.deadline += _queued(pgconn.socket, termios.FIONREAD) / _SLOWEST
        pgconn.consume_input()

    def _take_notifications(self) -> None:
        # Also where nobody listens: behind a connection pooler, another client may have asked for
        # them, and libpq keeps them until they are taken.
        while self._pgconn.notifies() is not None:
            self.notified = True

    def close(self) -> None:
        """Close at once, without waiting for the server. Idempotent."""
        self._pgconn.finish()


async def dial(
    location: Location, servers: Sequence[Address], script: str, deadline: float
) -> tuple[Connection, Address]:
    """Open a connection to the first of a location's servers that will do.

    Of several, only the primary does.

    Args:
        servers: all of them, in the order in which they are tried.
        script: done first.
        deadline: by trio's clock; each server, and each address of it, gets its share of the time.

    Returns:
        The connection, and the server that it leads to.

    Raises:
        EngineUnavailable: says why not, of each.
    """
    reasons: dict[Address, str] = {}
    if len(servers) > 1:
        script = _BE_PRIMARY + script
    for place, server in enumerate(servers):
        share = (deadline - trio.current_time()) / (len(servers) - place)
        try:
            return await _reach(location, server, script, share), server
        except (ConnectionLost, ServerError) as error:
            reasons[server] = str(error)
    if len(reasons) == 1:
        (why,) = reasons.values()
    else:
        why = "; ".join([f"{reasons[each]} ({each})" for each in dict.fromkeys(location.servers)])
    raise EngineUnavailable(f"can't connect to PostgreSQL at {location.name}: {why}")


async def _reach(location: Location, server: Address, script: str, seconds: float) -> Connection:
    """A connection to a server.

    Raises:
        ConnectionLost, ServerError: see there; or it doesn't answer in that time.
    """
    lost = ConnectionLost(f"no answer in {seconds:.2g} s")
    deadline = trio.current_time() + seconds
    with trio.move_on_at(deadline):
        addresses = await _addresses(server)
        for place, address in enumerate(addresses):
            share = (deadline - trio.current_time()) / (len(addresses) - place)
            with trio.move_on_after(share) as scope:
                try:
                    return await _prepare(await _connect(location, server, address), script, scope)
                except ConnectionLost as error:
                    lost = error
    raise lost


async def _prepare(pgconn: pq.abc.PGconn, script: str, scope: trio.CancelScope) -> Connection:
    connection = Connection(pgconn)
    try:
        await connection.run(script, scope)
    except BaseException:
        connection.close()
        raise
    return connection


async def _addresses(server: Address) -> list[str]:
    """Those of the host; libpq would wait for its name to be resolved. Empty for a Unix socket."""
    if server.host.startswith("/"):
        return [""]
    try:
        found = await trio.socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionLost((error.strerror or "no such host").lower()) from None
    return list(dict.fromkeys([str(address[0]) for *_, address in found]))


async def _connect(location: Location, server: Address, address: str) -> pq.abc.PGconn:
    settings = {
        "host": server.host,
        "hostaddr": address,
        "port": str(server.port),
        "dbname": location.database,
        "user": location.user,
        "password": location.password,
        "application_name": "mist",
        "gssencmode": "disable",  # it would wait for other servers
        **dict(location.tls),
    }
    given = {name: value for name, value in settings.items() if value}
    pgconn = pq.PGconn.connect_start(make_conninfo(**given).encode())
    try:
        status = pq.PollingStatus.WRITING  # as libpq wants it before the first poll
        while status != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED or pgconn.status == pq.ConnStatus.BAD:
                raise ConnectionLost(connection_error(pgconn.get_error_message()))  # noqa: TRY301
            if status == pq.PollingStatus.READING:
                await trio.lowlevel.wait_readable(pgconn.socket)
            else:
                await trio.lowlevel.wait_writable(pgconn.socket)
            status = pq.PollingStatus(pgconn.connect_poll())
        pgconn.nonblocking = 1
    except BaseException as error:
        pgconn.finish()
        if isinstance(error, OperationalError):
            raise ConnectionLost("the connection is broken") from None
        raise
    return pgconn


def _queued(fileno: int, which: int) -> int:
    """Bytes that a socket's buffer has, to be sent or to be read."""
    size = array.array("i", [0])
    fcntl.ioctl(fileno, which, size)
    return size[0]


def _encode(value: Value) -> tuple[bytes, int]:
    """A value in PostgreSQL's binary form, and its type."""
    match value:
        case bool():
            return (b"\1" if value else b"\0"), _BOOL
        case int():
            return value.to_bytes(8, "big", signed=True), _INT8
        case str():
            return value.encode(), _TEXT
        case bytes():
            return value, _BYTEA
        case _:
            return _pack(value), _BYTEAS


def _pack(values: Sequence[bytes | None]) -> bytes:
    """An array of bytes; see `array_recv` in PostgreSQL's source."""
    parts = [_ARRAY.pack(1, None in values, _BYTEA, len(values), 1)]
    for each in values:
        parts += [b"\xff\xff\xff\xff"] if each is None else [len(each).to_bytes(4, "big"), each]
    return b"".join(parts)


def _unpack(value: bytes) -> list[bytes | None]:
    values: list[bytes | None] = []
    at = _ARRAY.size  # of an empty one, that is behind its end
    while at < len(value):
        length = int.from_bytes(value[at : at + 4], "big", signed=True)
        at += 4
        values.append(None if length < 0 else value[at : at + length])
        at += max(length, 0)
    return values


def _rows(result: pq.abc.PGresult) -> Iterator[Row]:
    decoders = [_DECODERS[result.ftype(column)] for column in range(result.nfields)]
    for row in range(result.ntuples):
        values = [result.get_value(row, column) for column in range(len(decoders))]
        yield [
            None if value is None else decode(value)
            for value, decode in zip(values, decoders, strict=True)
        ]


# Of the types that mist asks for.
_DECODERS: Final[dict[int, Callable[[bytes], Cell]]] = {
    _BOOL: lambda value: value == b"\1",
    _BYTEA: lambda value: value,
    _INT8: lambda value: int.from_bytes(value, "big", signed=True),
    _TEXT: bytes.decode,
    _BYTEAS: _unpack,
}


def _error(result: pq.abc.PGresult) -> ServerError:
    code = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"it has closed the connection"
    return ServerError(code.decode(), text.decode("utf-8", "replace"))
