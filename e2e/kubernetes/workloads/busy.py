"""A workload that needs no framework: asks the emulated GPU for work for some seconds, by ctypes.

busy.py [--seconds S] [--burst N] [--exit CODE]

It works in small portions until S seconds of real time are over or the file /tmp/enough is there; the last line says
how many operations there were. With --burst it sleeps instead, and for ten seconds more; then come N operations in one
go, and the end, without another word to the GPU.
"""

import argparse
import ctypes
import os
import sys
import time

SIZE = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--burst", type=int, default=0)
    parser.add_argument("--exit", type=int, default=0)
    options = parser.parse_args()
    cuda = ctypes.CDLL("libcudart.so.13")
    memory, stream = ctypes.c_void_p(), ctypes.c_void_p()
    must(cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(SIZE)))
    must(cuda.cudaStreamCreate(ctypes.byref(stream)))
    count = 0
    print("at work", flush=True)
    deadline = time.monotonic() + options.seconds
    while time.monotonic() < deadline and not os.path.exists("/tmp/enough"):  # noqa: PTH110
        if not options.burst:
            for _ in range(10):
                must(cuda.cudaMemsetAsync(memory, 0, ctypes.c_size_t(SIZE), stream))
            count += 10
            must(cuda.cudaStreamSynchronize(stream))
        time.sleep(0.05)
    time.sleep(10 if options.burst else 0)  # time for a test to do something about its agent
    for _ in range(options.burst):
        must(cuda.cudaMemsetAsync(memory, 0, ctypes.c_size_t(SIZE), stream))
    print(f"{count + options.burst} operations", flush=True)
    return options.exit


def must(code: int) -> None:
    if code:
        sys.exit(f"CUDA error {code}")


if __name__ == "__main__":
    sys.exit(main())
