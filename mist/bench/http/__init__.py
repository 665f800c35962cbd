"""What mist costs over HTTP: `mist bench http`.

    dialect     requests, event streams and their answers as bytes
    rounds      medians over several rounds, each with the server's CPU time
    requests    `POST /v1/messages`, one at a time
    handshakes  WebSockets that connect with a token
    streams     deliveries on an event stream, beside those of a WebSocket and of a line
    cells       which of them, and how large

Plain sockets and prepared bytes: the driver reads no more of an answer than its status and
length, so what is measured is the server.
"""
