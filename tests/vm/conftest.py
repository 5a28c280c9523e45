"""Minutes of emulation: collected only where they are asked for, by `./dev test --vm`, and then nothing is skipped."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TESTS_VM") else ["test_*.py"]
