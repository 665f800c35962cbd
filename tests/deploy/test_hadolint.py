"""deploy/Containerfile by hadolint; the extra `deploy` has it."""

import subprocess

from tests.deploy.conftest import HADOLINT
from tests.deploy.test_container import FILE


def test_hadolint_has_no_complaint() -> None:
    command = [str(HADOLINT), str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
