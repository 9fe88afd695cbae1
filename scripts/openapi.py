"""Write the description of the HTTP interface: `openapi.py FILE`."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from gpuyard.config.settings import Settings
from gpuyard.server.app import make_app


def description() -> dict[str, Any]:
    """What `/openapi.json` of a server says."""
    app_state = MagicMock(election=None, settings=Settings(), url="http://127.0.0.1")
    return make_app(app_state).openapi()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(description()))
