"""Timeouts of torch, adapted to a simulation as its modules are imported.

The timeouts of process groups of NCCL are those of the program: torch's watchdog holds them against virtual time
(``core/timeout.cpp``), which is told of each of them.

A simulated run may be slower than the real one, so real waits get more time: the timeouts of torch's other process
groups and of its TCP stores, given or default, and the join, close, heartbeat and exit limits of torchrun, are
``EIDOLON_TIMEOUT_FACTOR`` times as long (60: a second becomes a minute). The monitors that look whether torch's
watchdog itself is stuck get a week unless their variables are set. The timeout of a single store operation is left
alone: programs poll with it. Only what torch sleeps in real time before it ends a process is shorter, 10 s for 60.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing has it, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any

WATCHDOG_DEFAULTS = {
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "604800",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "604800",
    # Torch waits for four times as long before it ends a process, while its ranks write down what they were doing.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2500",
}
SINGLE_PRECISION = 1e-6  # torch 2.14 hands timeouts on in seconds of that
LONGEST_TIMEOUT_S = 10 * 365 * 86_400.0  # what C++ still adds to a clock in nanoseconds


class Timeouts:
    """Lengthens the timeouts of ``torch.distributed`` by a factor, as its modules are imported.

    Args:
        tell: is told of each timeout of a process group of NCCL, in milliseconds, and says whether it holds in virtual
            time. Where it does not, it is lengthened like others.
    """

    GROUP_FUNCTIONS = (
        "init_process_group",
        "new_group",
        "new_subgroups",
        "new_subgroups_by_enumeration",
        "split_group",
        "monitored_barrier",
        "_new_group_with_tag",
        "_set_pg_timeout",
    )
    STORE_DEFAULT_S = 300  # of TCPStore's constructor
    STORE_POSITION = 4

    def __init__(self, factor: float, tell: Callable[[int], int]) -> None:
        self._factor = factor
        self._tell = tell
        self._lengthened: type[timedelta] | None = None
        self._originals: dict[timedelta, timedelta] = {}  # by what became of them: C++ hands on values alone

    def lengthen(self, timeout: Any) -> Any:
        """The timeout to use, of a type of its own: functions that hand it on to each other lengthen it once.

        What is no ``timedelta`` goes through, for torch to judge.
        """
        from datetime import timedelta

        if self._lengthened is None:
            reduce = {"__reduce__": lambda self_: (timedelta, (self_.days, self_.seconds, self_.microseconds))}
            self._lengthened = type("Lengthened", (timedelta,), reduce)
        if not isinstance(timeout, timedelta) or isinstance(timeout, self._lengthened):
            return timeout
        seconds = timeout.total_seconds()
        if seconds >= LONGEST_TIMEOUT_S:
            return timeout
        lengthened = self._lengthened(seconds=min(seconds * self._factor, LONGEST_TIMEOUT_S))
        self._originals[lengthened] = timeout
        return lengthened

    def given(self, timeout: Any) -> Any:
        """The timeout that a process group of NCCL gets: the program's own, if that holds in virtual time."""
        from datetime import timedelta

        if not isinstance(timeout, timedelta):
            return timeout
        for lengthened, original in self._originals.items():
            if abs(lengthened - timeout) <= lengthened * SINGLE_PRECISION:
                given = original
                break
        else:
            given = timeout
        return given if self._tell(min(given // timedelta(milliseconds=1), 2**62)) else timeout

    def constants(self, module: Any) -> None:
        """``torch.distributed.constants``: the defaults, before anything copies them; and the TCP store."""
        from datetime import timedelta

        module.default_pg_timeout = self.lengthen(module.default_pg_timeout)
        module.default_pg_nccl_timeout = self.lengthen(module.default_pg_nccl_timeout)
        store = sys.modules["torch._C._distributed_c10d"].TCPStore
        construct = store.__init__
        at, default = self.STORE_POSITION, timedelta(seconds=self.STORE_DEFAULT_S)

        def __init__(self_: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if len(args) > at:
                args = (*args[:at], self.lengthen(args[at]), *args[at + 1 :])
            else:
                kwargs["timeout"] = self.lengthen(kwargs.get("timeout", default))
            construct(self_, *args, **kwargs)

        store.__init__ = __init__

    def groups(self, module: Any) -> None:
        """``torch.distributed.distributed_c10d``: what makes process groups or sets their timeout."""
        import functools
        import inspect

        def lengthening(function: Callable[..., Any]) -> Callable[..., Any]:
            at = list(inspect.signature(function).parameters).index("timeout")

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if len(args) > at:
                    args = (*args[:at], self.lengthen(args[at]), *args[at + 1 :])
                elif "timeout" in kwargs:
                    kwargs["timeout"] = self.lengthen(kwargs["timeout"])
                return function(*args, **kwargs)

            return call

        for name in self.GROUP_FUNCTIONS:
            if hasattr(module, name):
                setattr(module, name, lengthening(getattr(module, name)))
        if hasattr(module, "ProcessGroupNCCL"):
            self._nccl(module.ProcessGroupNCCL, module.ProcessGroup)

    def _nccl(self, group: Any, of_all: Any) -> None:
        """Where torch hands a timeout to a process group of NCCL, that gets the program's own.

        The functions in between cost the program nothing: the shim leaves out what has their name.
        """
        from datetime import timedelta

        def giving(function: Callable[..., Any]) -> Callable[..., Any]:
            def eidolon_uncounted(self_: Any, *args: Any, **kwargs: Any) -> Any:
                if "timeout" in kwargs:
                    kwargs["timeout"] = self.given(kwargs["timeout"])
                args = tuple([self.given(value) if isinstance(value, timedelta) else value for value in args])
                return function(self_, *args, **kwargs)

            return eidolon_uncounted

        options = group.Options
        options._timeout = property(options._timeout.fget, giving(options._timeout.fset))
        for owner, name in ((group, "_set_default_timeout"), (of_all, "split_group")):
            if hasattr(owner, name):
                setattr(owner, name, giving(getattr(owner, name)))
        if hasattr(of_all, "set_timeout"):
            self._of_all(group, of_all)

    def _of_all(self, group: Any, of_all: Any) -> None:
        """torch 2.14: a timeout that C++ sets in all backends of a group, of NCCL and others."""
        set_timeout = of_all.set_timeout

        def eidolon_uncounted(self_: Any, timeout: Any) -> None:
            set_timeout(self_, self.lengthen(timeout))
            for device in self_._device_types:
                backend = self_._get_backend(device)
                if isinstance(backend, group):
                    backend._set_default_timeout(timeout)

        of_all.set_timeout = eidolon_uncounted

    def rendezvous(self, module: Any) -> None:
        """``torch.distributed.elastic.rendezvous.dynamic_rendezvous``: how long torchruns wait for each other.

        Not ``last_call``: that is a delay, not a limit.
        """
        defaults = module.RendezvousTimeout._DEFAULT_TIMEOUTS
        for name in ("join", "close", "heartbeat"):
            defaults[name] = self.lengthen(defaults[name])
        construct = module.RendezvousSettings.__init__
        factor = max(1, round(self._factor))

        def __init__(self_: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            construct(self_, *args, **kwargs)
            object.__setattr__(self_, "keep_alive_max_attempt", self_.keep_alive_max_attempt * factor)

        module.RendezvousSettings.__init__ = __init__

    def agent(self, module: Any) -> None:
        """``torch.distributed.elastic.agent.server.local_elastic_agent``: its wait for the other servers' end."""
        import inspect

        construct = module.LocalElasticAgent.__init__
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(construct).parameters.items()
            if parameter.default is not parameter.empty
        }
        defaults["exit_barrier_timeout"] *= self._factor
        construct.__defaults__ = tuple(defaults.values())
