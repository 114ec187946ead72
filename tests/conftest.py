"""Makes the helpers that several packages' tests share importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "interposer")]
sys.path.append(str(HERE.parent))  # bench
