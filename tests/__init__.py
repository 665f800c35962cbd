"""Tests of mist; the folders mirror the package.

Beside them: `system` for what takes a whole server or crosses all its endpoints, `examples`, and
`benchmarks` for what mist is compared with. What several folders use stands here: `servers` and
`processes` start servers (mostly through the fixtures of conftest.py), `waiting` waits.
"""
