"""What needs tools of the extra `deploy` is collected where they are installed; CI does so last."""

import sys
from importlib.util import find_spec
from pathlib import Path

HADOLINT = Path(sys.executable).with_name("hadolint")

collect_ignore = [
    *([] if find_spec("helm_python") else ["test_chart.py"]),
    *([] if HADOLINT.exists() else ["test_hadolint.py"]),
    *([] if find_spec("cyclonedx_py") else ["test_release.py"]),
]
