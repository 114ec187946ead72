"""GEMMs that aiconfigurator-core measured: GPUs without tables of our own take theirs from it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from eidolon_simcore import catalogue
from eidolon_simcore.costs import model, package_tables, published
from eidolon_simcore.costs.interpolation import Known, Points
from eidolon_simcore.costs.model import CostModel
from eidolon_simcore.costs.roofline import Roofline

LINEAR = "torch.nn.functional.linear"
needs_package = pytest.mark.skipif(not published.installed(), reason="aiconfigurator-core is not installed")


def forget() -> None:
    published.linears.cache_clear()
    model.measured_points.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package laid out like the real one, with nothing measured yet."""
    folder = tmp_path / "aiconfigurator_core"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('its code is not to run')", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield folder
    forget()


def row(m: int, n: int, k: int, ms: float, dtype: str = "bfloat16", source: str = LINEAR) -> dict[str, Any]:
    sizes = {"m": m, "n": n, "k": k, "latency": ms}
    return {"framework": "VLLM", "op_name": "gemm", "kernel_source": source, "gemm_dtype": dtype, **sizes}


def measured(package: Path, *rows: dict[str, Any], gpu: str = "b200_sxm", version: str = "0.24.0") -> Path:
    file = package / "systems" / "data" / gpu / "gemm" / "vllm" / version / "gemm_perf.parquet"
    file.parent.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(list(rows)), file)
    return file


def test_pytorchs_bf16_layers_of_the_newest_table_are_taken(package: Path) -> None:
    measured(package, row(1024, 1024, 1024, 9.0), version="0.9.0")
    measured(
        package,
        row(1024, 2048, 512, 0.5),
        row(1024, 2048, 512, 0.3, dtype="fp8", source="CutlassFP8ScaledMMLinearKernel"),
        row(1024, 2048, 512, 0.2, source="SomethingElse"),
        row(1025, 2048, 512, 0.5),
        row(8, 2048, 512, 0.5),
    )
    assert published.linears("b200-sxm") == ((1024, 2048, 512, 500_000.0),)
    assert published.linears("gb200") == ()


def test_a_gpu_without_tables_of_our_own_has_these_products_measured(package: Path) -> None:
    b200 = catalogue.gpu("b200-sxm")
    signature = package_tables.linear(4096, 4096, 4096)
    before = CostModel(b200).cost(signature)
    measured(package, row(4096, 4096, 4096, 0.1), row(8192, 4096, 4096, 0.2))
    forget()
    cost = CostModel(b200).cost(signature)
    assert (before.source, cost.source) == ("interpolated", "measured")
    assert cost.base_ns == 100_000 + model.LAUNCH_GAP_NS
    assert cost.error == published.ERROR < before.error


def test_they_tell_about_other_layouts_too_and_about_nothing_else(package: Path) -> None:
    b200 = catalogue.gpu("b200-sxm")
    gradient = model.Signature("gemm", "cublasGemmEx", {**package_tables.linear(4096, 4096, 4096).attributes, "ta": 0})
    copy = next(p.signature for p in package_tables.load() if p.signature.kind == "kernel" and p.operator is None)
    before = CostModel(b200).cost(gradient), CostModel(b200).cost(copy)
    measured(package, row(4096, 4096, 4096, 1.0))  # seven times as long as it would be
    forget()
    after = CostModel(b200).cost(gradient), CostModel(b200).cost(copy)
    assert after[0].source == "interpolated"
    assert after[0].base_ns > 4 * before[0].base_ns
    assert after[1] == before[1]


def test_gpus_with_tables_of_our_own_take_nothing_from_it(package: Path) -> None:
    without = CostModel(catalogue.gpu("h200-sxm")).cost(package_tables.linear(4096, 4096, 4096))
    measured(package, row(4096, 4096, 4096, 1.0), gpu="h200_sxm")
    forget()
    assert CostModel(catalogue.gpu("h200-sxm")).cost(package_tables.linear(4096, 4096, 4096)) == without
    assert published.statement(["h200-sxm"]) == []


def test_a_run_says_what_it_took(package: Path) -> None:
    measured(package, row(4096, 4096, 4096, 0.1))
    (line,) = published.statement(["b200-sxm", "h100-sxm", "b200-sxm", "gb200"])
    assert line.startswith("b200-sxm: 1 GEMMs of aiconfigurator-core ")
    assert line.endswith("(b200_sxm/gemm/vllm/0.24.0)")


def test_a_run_says_what_it_could_have_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert published.statement(["h100-sxm", "a10"]) == []
    assert published.statement(["gb200"]) == [
        "gb200: GEMMs carried over from other GPUs; measured ones with aiconfigurator-core (extra aic)"
    ]


def test_a_table_of_another_form_is_an_error(package: Path) -> None:
    file = measured(package, {"gemm_dtype": "bfloat16", "m": 1, "n": 1, "k": 1, "latency": 1.0})
    with pytest.raises(published.PublishedError, match=f"{file}: no column 'kernel_source': gemm_dtype, kernel_source"):
        published.linears("b200-sxm")


@needs_package
def test_the_shipped_table_is_a_selection_of_the_packages() -> None:
    folder = published._folder()
    assert folder is not None
    rows = published.select(folder / "systems/data/h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet")
    shipped = [
        p
        for p in package_tables.load()
        if p.signature == package_tables.linear(4096, 4096, 4096) and p.gpu == "h100-sxm"
    ]
    assert [ns for m, n, k, ns in rows if (m, n, k) == (4096, 4096, 4096)] == pytest.approx([shipped[-1].ns])


@needs_package
@pytest.mark.parametrize("gpu", ["a100-80gb-sxm", "b200-sxm"])
def test_held_out_products_are_closer_than_carried_ones(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fortieth, from the rest of the GPU's own; and from H100 and H200."""
    here = Roofline(catalogue.gpu(gpu))
    known = [Known(here.gemm(package_tables.linear(m, n, k)).work, ns) for m, n, k, ns in published.linears(gpu)]
    assert len(known) > 5_000
    own = Points(one for i, one in enumerate(known) if i % 40)
    monkeypatch.setattr(published, "linears", lambda gpu: ())
    carried = model.measured_points.__wrapped__(gpu)

    def off(points: Points) -> float:
        found = [(points.estimate(one.work), one.ns) for one in known[::40]]
        return statistics.fmean(abs(estimate.ns / ns - 1) for estimate, ns in found if estimate is not None)

    assert off(own) < 0.08
    assert off(carried) > 2 * off(own)
