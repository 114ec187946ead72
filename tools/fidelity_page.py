"""Makes docs/fidelity.md: tables and figures from the results in ``bench/fidelity``, and prose from a template.

The prose is ``tools/fidelity.md.j2``. It asks for figures by GPU and line, so that a new result changes the page and
nothing else has to be touched. A line that is not in the data is an error. Needs Jinja and nothing of Eidolon: the
results are JSON lines (``bench/fidelity/results.py`` says what is in them).
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2

PAGE: Final = Path("docs/fidelity.md")
TEMPLATE: Final = Path("tools/fidelity.md.j2")
RESULTS: Final = Path("bench/fidelity/results")
PREDICTED: Final = Path("bench/fidelity/predicted")
PROSE_WIDTH: Final = 100  # characters of a line of Markdown, as in pyproject.toml ([tool.rumdl])
OPERATIONS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
SHOWN_BYTES: Final = tuple(1 << power for power in (10, 16, 20, 22, 24, 26, 28, 30))  # of collectives
_GLUE: Final = "\x1f"  # stands for a space at which no line breaks

Record = Mapping[str, Any]


def page(root: Path) -> str:
    """The text of docs/fidelity.md for the data of a checkout."""
    results = {gpu: _read(root / RESULTS / f"{gpu}.jsonl") for gpu in ("h100", "h200")}
    predicted = {gpu: _read(root / PREDICTED / f"{gpu}_x8.jsonl") for gpu in ("h100", "h200")}
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)
    template = environment.from_string((root / TEMPLATE).read_text("utf-8"))
    return wrapped(template.render(functions(results, predicted)))


def functions(
    results: Mapping[str, Sequence[Record]], predicted: Mapping[str, Sequence[Record]]
) -> dict[str, Callable[..., str]]:
    """What the template may call. ``gpu`` is a key of the results, ``line`` the name of a line in them."""

    def of(gpu: str, kind: str) -> list[Record]:
        return [one for one in results[gpu] if one["kind"] == kind]

    def find(gpu: str, line: str) -> Record:
        for one in results[gpu]:
            if one["line"] == line:
                return one
        raise LookupError(f"{RESULTS}/{gpu}.jsonl has no line {line!r}")

    return {
        "provenance": lambda gpu, kind: provenance(of(gpu, kind)),
        "steps_table": lambda gpu: steps_table(of(gpu, "step")),
        "steps_means": lambda gpu: means(of(gpu, "step")),
        "coverage": lambda gpu: coverage(of(gpu, "step")),
        "frameworks_table": lambda gpu: frameworks_table(of(gpu, "framework")),
        "all_means": lambda gpu: means(of(gpu, "step") + of(gpu, "framework")),
        "launches": lambda: launches(of("h100", "trace")),
        "traces_table": lambda: traces_table(of("h100", "trace")),
        "predicted_table": lambda: predicted_table(predicted),
        "collectives_table": lambda: collectives_table(predicted),
        "off": lambda gpu, line, median=False: off(find(gpu, line), median),
        "ms": lambda gpu, line: f"{find(gpu, line)['here_ms']:.0f} ms",
        "speed": lambda gpu, line, field: _speed(find(gpu, line), field),
        "percent": lambda gpu, line, field: _percent(find(gpu, line)[field]),
        "step_distance": lambda gpu, line: f"{abs(step_error(find(gpu, line))):.1%}".replace("%", " %"),
    }


def _read(path: Path) -> list[Record]:
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


# ---- sentences -------------------------------------------------------------------------------------------------------


def provenance(records: Sequence[Record]) -> str:
    """When and with what the runs were simulated, and what their notes say."""
    cores = _several(f"{one['cores']}" for one in records if one["cores"])
    versions: dict[str, dict[str, None]] = {}
    for one in records:
        for name, version in one["versions"].items():
            versions.setdefault(name.replace("python", "Python"), {})[version] = None
    text = f"The simulated runs are of {_several(one['date'] for one in records)}"
    text += f", on {cores} cores" if cores else ""
    text += ", with " + ", ".join(f"{name} {_several(which)}" for name, which in versions.items()) + "."
    return " ".join((text, *dict.fromkeys(one["note"] for one in records if one.get("note"))))


def _several(values: Iterable[str]) -> str:
    """A list of the values, each of them once, such as "3.11 and 3.12"."""
    return " and ".join(sorted(dict.fromkeys(values)))


def means(records: Sequence[Record]) -> str:
    """Mean and greatest errors of step times, of both kinds of runs."""
    sentences = []
    for bound, kind, what in ((False, "bound by the GPU", "error"), (True, "bound by their hosts", "distance")):
        errors = {one["line"]: abs(step_error(one)) for one in records if bool(one["host_bound"]) == bound}
        if errors:
            worst = max(errors, key=errors.__getitem__)
            mean = sum(errors.values()) / len(errors)
            sentences.append(
                f"The mean {what} of the {len(errors)} run{'s' * (len(errors) > 1)} {kind} is {_plain(mean)}, "
                f"the greatest {_plain(errors[worst])} (`{worst}`)."
            )
    return " ".join(sentences)


def coverage(records: Sequence[Record]) -> str:
    """How much of the device time has a cost that is better than a roofline. Empty if the data do not say."""
    known = {one["line"]: one["known_share"] for one in records}
    if None in known.values():
        return ""
    least = min(known, key=known.__getitem__)
    free = sum(one["free"] for one in records)
    return (
        "Device time with a measured or interpolated cost is "
        f"{_plain(sum(known.values()) / len(known))} on average and at least {_plain(known[least])} (`{least}`). "
        + ("No operation took no time." if free == 0 else f"{free} operations took no time.")
    )


def off(record: Record, median: bool = False) -> str:
    """Words such as "4.1 % too fast" for the error, or with ``median`` for the difference to the real median."""
    error = speed_error(record) if median else step_error(record)
    if record.get("unit") == "tokens/s" and median:
        return f"{abs(error):.0%}".replace("%", " %") + (" too fast" if error > 0 else " too slow")
    if round(abs(error), 3) == 0:
        return "within 0.1 % of the real one"
    return _plain(abs(error)) + (" too slow" if error > 0 else " too fast")


def launches(records: Sequence[Record]) -> str:
    """How many of torch's own launches are the same."""
    equal, real = (sum(one[field] for one in records) for field in ("equal", "launches"))
    return (
        "What torch launches itself (ATen's kernels, copies, sets) is compared one by one, by its demangled name "
        f"and in the order of its stream: {equal:,} of {real:,} launches are the same."
    )


# ---- errors ----------------------------------------------------------------------------------------------------------


def speed_error(record: Record) -> float:
    """The error relative to the real median, of tokens/s or of the step time, as the record has it."""
    return float(record["here"] / record["real"] - 1)


def step_error(record: Record) -> float:
    """The error of the step time, even if the record has tokens/s. Positive means too slow."""
    if record.get("unit") != "tokens/s":
        return float(record["error"])
    if not record["host_bound"]:
        return float(record["real"] / record["here"] - 1)
    here, low, high = (1 / record[field] for field in ("here", "real_max", "real_min"))
    return float((here - min(max(here, low), high)) * record["real"])


# ---- tables ----------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def steps_table(records: Iterable[Record]) -> str:
    """One row for each run of train.py."""
    head = ("run of `train.py`", "GPUs", "step ms", "real", "error", "against the median", "allocated", "reserved")
    rows = (
        (
            f"`{one['line'].rsplit(' x', 1)[0]}`",
            str(one["gpus"]),
            f"{one['here_ms']:.2f}",
            f"{one['real_ms']:.2f}",
            _percent(one["error"], 1) + (" *" if one["host_bound"] else ""),
            _percent(one["median_error"], 1),
            _percent(one["allocated_error"]),
            _percent(one["reserved_error"]),
        )
        for one in records
    )
    return _table(head, rows)


def frameworks_table(records: Iterable[Record]) -> str:
    """One row for each run of a framework: by the step, or by tokens a second and GPU."""
    head = ("run", "GPUs", "unit", "here", "real (range)", "error")
    memory = ("allocated, real", "error", "reserved, real", "error")
    rows = (
        (
            f"`{one['line'].rsplit(' x', 1)[0]}`",
            str(one["gpus"]),
            "ms a step" if one["unit"] == "ms" else "tokens/s and GPU",
            _speed(one, "here"),
            f"{_speed(one, 'real')} ({_speed(one, 'real_min')} to {_speed(one, 'real_max')})",
            _percent(one["error"], 1) + (" *" if one["host_bound"] else ""),
            *_memory(one, "allocated"),
            *_memory(one, "reserved"),
        )
        for one in records
    )
    return _table((*head, *memory), rows)


def _memory(record: Record, which: str) -> Iterator[str]:
    """The peaks of all ranks, in which those that repeat stand once, and the greatest error of a rank."""
    peaks = [f"{peak:,.2f}".rstrip("0").rstrip(".") for peak in dict.fromkeys(record[which])]
    yield f"{', '.join(peaks)} {record['memory_unit']}" if peaks else "-"
    yield "-" if record[f"{which}_error"] is None else _percent(record[f"{which}_error"])


def traces_table(records: Iterable[Record]) -> str:
    """One row for each trace."""
    head = ("trace", "launches equal", "library calls", "device time", "GEMM", "attention", "NCCL, sum")
    rows = (
        (
            f"`{one['line']}`",
            f"{one['equal']:,} of {one['launches']:,}",
            f"{one['calls']:,}",
            *(
                "-" if one[f"{field}_error"] is None else _percent(one[f"{field}_error"], 1)
                for field in ("device", "gemm", "attention", "nccl")
            ),
            *(
                ", ".join(f"{value:,.1f}" for value in one[f"{field}_ms"]) if any(one[f"{field}_ms"] or ()) else "-"
                for field in ("exposed", "idle", "span")
            ),
        )
        for one in records
    )
    return _table((*head, "exposed ms", "idle ms", "span ms"), rows)


def predicted_table(predicted: Mapping[str, Sequence[Record]]) -> str:
    """One row for each run on eight GPUs, with what is predicted for both models."""
    rows = []
    for h100, h200 in zip(*predicted.values(), strict=True):
        if h100["script"] == "coll_graph.py":
            continue
        cells = []
        for one in (h100, h200):
            if "tps" in one:
                tps, mfu = sorted(one["tps"][2:]), sorted(one["mfu"][2:])
                cells.append(f"{tps[len(tps) // 2]:,.0f} tokens/s/GPU, MFU {mfu[len(mfu) // 2]:.1f} %")
            else:
                cells.append(f"{one['step_ms_median']:.2f} ms")
        name = h100["name"] if "name" in h100 else f"{h100['script']} {h100['args']}"
        title = f"TorchTitan {name}" if "name" in h100 else f"`{name.removeprefix('train.py --model ')}`"
        if "tps" in h100:
            memory = f"{max(h100['memory_gib']):.2f} GiB"
        else:
            peaks = h100["peak_reserved_mib"]
            ranks = dict.fromkeys(peaks if isinstance(peaks, list) else [peaks])
            memory = ", ".join(f"{peak:,.0f}" for peak in ranks) + " MiB"
        rows.append((title, *cells, memory))
    return _table(("run, 8 GPUs, `NCCL_NVLS_ENABLE=0`", "H100", "H200", "reserved"), rows)


def collectives_table(predicted: Mapping[str, Sequence[Record]]) -> str:
    """Microseconds of each operation by bytes, H100 / H200."""
    by_bytes = [{one["bytes"]: one for one in of if one["script"] == "coll_graph.py"} for of in predicted.values()]
    rows = []
    for count in SHOWN_BYTES:
        cells = (" / ".join(_microseconds(of[count][operation]) for of in by_bytes) for operation in OPERATIONS)
        rows.append((_bytes(count), *cells))
    return _table(("bytes", *(operation.replace("_", "-") for operation in OPERATIONS)), rows)


# ---- words -----------------------------------------------------------------------------------------------------------


def _percent(value: float, digits: int = 2) -> str:
    return f"{value * 100:+.{digits}f} %"


def _plain(value: float) -> str:
    return f"{value * 100:.1f} %"


def _speed(record: Record, field: str) -> str:
    return f"{record[field]:,.1f}" if record["unit"] == "ms" else f"{record[field]:,.0f}"


def _microseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count // size} {unit}"
    return f"{count} B"


def wrapped(text: str) -> str:
    """Markdown whose paragraphs and list items are one line each, with these wrapped; tables and code stay."""
    lines: list[str] = []
    code = False
    for line in text.split("\n"):
        code ^= line.startswith("```")
        if code or line.startswith(("|", "#", "```")):
            lines.append(line)
        else:
            indent = "  " if line.startswith("* ") else ""
            whole = re.sub(r"`[^`]*`", lambda span: span[0].replace(" ", _GLUE), line)  # code stays on one line
            wrap = textwrap.wrap(
                whole, PROSE_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
            lines += wrap or [""]
    return "\n".join(lines).replace(_GLUE, " ")
