"""How much an operation does: arithmetic and bytes. Its *cost* (:mod:`.model`) says how long that takes.

Arithmetic is that of matrix units: matrix products, convolutions and attention. It is counted as executed, so a
recomputed forward pass counts twice, and a multiplication and an addition count as two. What other kernels compute is
not counted: it is a per mille of a training step, and MFU never includes it. Bytes are those that a launch must at
least move to and from device memory; copies say which way they go.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields

from eidolon_simcore.catalogue import Gpu
from eidolon_simcore.costs import volumes
from eidolon_simcore.costs.kernel_names import Launch, demangle, traffic
from eidolon_simcore.costs.model import Signature
from eidolon_simcore.costs.volumes import Volume


@dataclass(frozen=True, slots=True)
class Work:
    """The sum of what some operations do."""

    flops: float = 0.0
    tensor_ns: float = 0.0  #: time that the matrix units need for it at their peak for its types
    memory_bytes: float = 0.0  #: to and from device memory
    to_device_bytes: float = 0.0  #: over PCIe
    from_device_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*map(operator.add, self.values(), other.values()))

    def values(self) -> tuple[float, ...]:
        """In order of :data:`WORK_FIELDS`."""
        return self.flops, self.tensor_ns, self.memory_bytes, self.to_device_bytes, self.from_device_bytes


WORK_FIELDS = tuple(field.name for field in fields(Work))


def per_launch(signature: Signature, gpu: Gpu, of: Signature | None = None) -> Work:
    """The work of one operation of this signature, without the bytes that its records name (:func:`per_byte`). ``of``
    is the "op" signature that its attribute ``op`` names."""
    s = signature
    match s.kind:
        case "gemm":
            return _matrix(gpu, volumes.gemm(s))
        case "conv":
            return _matrix(gpu, volumes.conv(s))
        case "attention":
            return _matrix(gpu, volumes.attention(s).volume)
        case "kernel":
            name = demangle(s.name)
            fused = volumes.fused_attention(name, of)
            if fused is not None:
                return _matrix(gpu, fused.volume)
            threads = max(1, s.get("bx", 1)) * max(1, s.get("by", 1)) * max(1, s.get("bz", 1))
            blocks = max(1, s.get("gx", 1)) * max(1, s.get("gy", 1)) * max(1, s.get("gz", 1))
            moved = traffic(Launch(name, blocks, threads, s.get("n", -1))).bytes
            return Work(memory_bytes=float(moved))
        case "library":
            return Work(memory_bytes=float(s.get("bytes")))
    return Work()


def per_byte(signature: Signature) -> Work:
    """The work of one byte that a record of a copy or a fill names."""
    if signature.kind == "set":
        return Work(memory_bytes=1.0)
    if signature.kind != "copy":
        return Work()
    match signature.name:
        case "h2d":
            return Work(memory_bytes=1.0, to_device_bytes=1.0)
        case "d2h":
            return Work(memory_bytes=1.0, from_device_bytes=1.0)
        case "d2d":
            return Work(memory_bytes=2.0)
        case "p2p":
            return Work(memory_bytes=1.0)
    return Work()


def _matrix(gpu: Gpu, volume: Volume) -> Work:
    on_matrix_units = volume.units not in ("fp32_simt", "fp64")
    tensor_ns = volume.flops / gpu.peak_flops(volume.units) * 1e9 if on_matrix_units else 0.0
    return Work(volume.flops, tensor_ns, volume.bytes)
