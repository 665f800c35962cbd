"""What `mist bench` measures: one module for each kind of figure.

    match           the index alone
    throughput      publishers to subscribers, flat out or within a window
    latency         from write to read, at a rate
    idle            memory of connections that are silent
    slow_consumer   one that stops reading, beside others that don't

    script, dialect     what is said and heard, as bytes, before the clock runs
    connections, receiver, load     the driver: plays scripts, checks what arrives
    process, site       the server that is measured
    history             the message log, by itself and behind a server
    http                requests, event streams, WebSocket handshakes
    nodes               two nodes on an engine: what they carry, and how soon they recover
    pipeline            jobs on Spark, beside plain DataFrame code

    cell, suite         which measurements, one after the other
    report, tables      as rows, and for people

The driver measures any server that has a dialect; tests/benchmarks adds mist's peers.
"""
