"""Linux futexes on words of shared memory: how the agent and the shims of its server wait for each other.

The words lie in files that several processes map, so the operations are the shared ones (not ``FUTEX_PRIVATE``).
The system call is made through ``ctypes``, which releases the GIL while it waits. A futex wait may always end early;
callers look at the word again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

_SYSCALL_NUMBERS = {"x86_64": 202, "aarch64": 98}
_WAIT = 0
_WAKE = 1
_EVERYONE = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_number = ctypes.c_long(_SYSCALL_NUMBERS.get(platform.machine(), -1))
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_wait_operation = ctypes.c_int(_WAIT)
_wake_operation = ctypes.c_int(_WAKE)


def wait(address: int, seen: int, timeout_ns: int) -> bool:
    """Sleeps while the word at ``address`` is ``seen``, for ``timeout_ns`` at most.

    True if it was woken or the word had changed, False if the time ran out.
    """
    limit = _Timespec(*divmod(timeout_ns, 1_000_000_000))
    result = _syscall(
        _number, ctypes.c_void_p(address), _wait_operation, ctypes.c_uint32(seen), ctypes.byref(limit), None, 0
    )
    if result == 0:
        return True
    error = ctypes.get_errno()
    if error in (errno.EAGAIN, errno.EINTR):
        return True
    if error == errno.ETIMEDOUT:
        return False
    raise OSError(error, f"futex wait: {os.strerror(error)}")


def wake(address: int, count: int = _EVERYONE) -> int:
    """Wakes up to ``count`` of those who wait at ``address``; returns how many there were: none on a page that its file
    no longer has."""
    result: int = _syscall(_number, ctypes.c_void_p(address), _wake_operation, ctypes.c_int(count), None, None, 0)
    if result < 0:
        error = ctypes.get_errno()
        if error == errno.EFAULT:
            return 0
        raise OSError(error, f"futex wake: {os.strerror(error)}")
    return result
