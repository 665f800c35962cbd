"""Numbers that commands are given."""

import pytest
from click.testing import CliRunner

from mist.cli import main


@pytest.mark.parametrize("value", ["nan", "NaN", "inf"])
@pytest.mark.parametrize(
    "command",
    [
        ("top", "--once", "--interval"),
        ("bench", "latency", "--rate"),
        ("bench", "nodes", "--seconds"),
        ("pipeline", "replay", "--rate"),
        ("pipeline", "retain", "--grace"),
    ],
)
def test_what_is_no_number_is_refused(command: tuple[str, ...], value: str) -> None:
    ran = CliRunner().invoke(main, [*command, value])
    assert ran.exit_code == 2
    assert f"Invalid value for '{command[-1]}'" in ran.stderr.replace("'-i' / ", "")
