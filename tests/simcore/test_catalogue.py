"""The GPU catalogue."""

import pytest

from eidolon_simcore import catalogue


def test_the_h100_answers_as_the_real_one() -> None:
    h100 = catalogue.gpu("h100-sxm")
    assert (h100.name, h100.cc, h100.sm_count) == ("NVIDIA H100 80GB HBM3", "9.0", 132)
    assert h100.memory_bytes == 85_017_493_504  # torch.cuda.get_device_properties of a real one
    assert h100.peak["bf16"] == 989.4e12


def test_the_conf_has_every_key_and_takes_the_runs_values() -> None:
    conf = catalogue.gpu("h100-sxm").server_conf(memory_bytes=8 << 30, context_bytes=1)
    assert conf["gpu.memory_bytes"] == str(8 << 30)
    assert conf["gpu.context_bytes"] == "1"
    keys = (
        "name cc sm_count memory_bytes context_bytes clock_khz memory_clock_khz memory_bus_bits l2_bytes smem_per_block"
    )
    keys += " smem_per_block_optin smem_per_sm reserved_smem_per_block regs_per_sm max_threads_per_sm max_blocks_per_sm"
    keys += " nvlinks power_limit_mw"
    assert set(conf) == {f"gpu.{key}" for key in keys.split()}


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown GPU 'h900': h100-sxm, .* are allowed"):
        catalogue.gpu("h900")


@pytest.mark.parametrize("name", catalogue.names())
def test_every_entry_is_plausible(name: str) -> None:
    gpu = catalogue.gpu(name)
    assert 20 << 30 < gpu.memory_bytes < 300 << 30
    assert gpu.source
    assert gpu.peak_flops("fp8") >= gpu.peak_flops("bf16") >= gpu.peak_flops("tf32") > gpu.peak_flops("fp64") > 0
    assert (gpu.nvlinks > 0) == (gpu.nvlink_bytes_per_s > 0)
    assert gpu.intra_bytes_per_s >= 25e9
