"""The greeting of the NATS protocol: INFO, which describes the server to a new client."""

import attrs
import msgspec

__all__ = ["ServerInfo"]


@attrs.frozen
class ServerInfo:
    """A server, as INFO describes it.

    Attributes:
        server_id: another one for each server and start.
        version: of mist.
        host, port: of the listener.
        max_payload: bytes.
        auth_required: whether clients need a secret or a token.
        tls_required: whether TLS begins behind this line.
    """

    server_id: str
    version: str
    host: str = ""
    port: int = 0
    max_payload: int = 1_048_576
    auth_required: bool = False
    tls_required: bool = False

    def line(self, client_id: int, client_ip: str = "") -> bytes:
        """The greeting of one client, by its number and address."""
        fields: dict[str, object] = {
            "server_id": self.server_id,
            "server_name": "mist",
            "version": self.version,
            "proto": 1,
            "host": self.host,
            "port": self.port,
            "headers": True,
            "max_payload": self.max_payload,
            "client_id": client_id,
            "client_ip": client_ip,
        }
        # Said only where it is so, as clients know it.
        if self.auth_required:
            fields["auth_required"] = True
        if self.tls_required:
            fields["tls_required"] = True
        return b"INFO %b\r\n" % msgspec.json.encode(fields)
