"""Makes the helpers beside the tests importable, and generates the protocol's code where the build has not yet."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

if importlib.util.find_spec("eidolon_proto") is None:
    from grpc_tools import protoc

    out = Path(tempfile.mkdtemp(prefix="eidolon-proto-"))
    package = out / "eidolon_proto" / "v1"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (out / "eidolon_proto" / "__init__.py").touch()
    shutil.copy(HERE.parents[1] / "proto/eidolon/v1/simulation.proto", package)
    arguments = ["protoc", f"-I{out}", f"--python_out={out}", f"--grpc_python_out={out}"]
    if protoc.main([*arguments, "eidolon_proto/v1/simulation.proto"]) != 0:
        raise RuntimeError("protoc failed")
    sys.path.insert(0, str(out))


from serving import core  # noqa: E402 (once the protocol's code is there)

__all__ = ["core"]  # a fixture
