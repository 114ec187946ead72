"""The generated stubs and the shim's libraries as files: names, versions, and what a stub does when it is called."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "interposer" / "native"
sys.path.insert(0, str(NATIVE / "stubs"))

from declarations import OVERLOADED, VARIADIC, declared, include_dirs, preprocess  # noqa: E402
from generate import missing_headers, sonames_header, stub_sources, version_script  # noqa: E402
from libraries import HERE, Library, Status, libraries, read_exports  # noqa: E402

CUDA = 13
TABLE = libraries(CUDA)
HEADERS = include_dirs([Path(sys.prefix)], CUDA)
TORCHES = [
    path
    for path in (Path(sys.prefix), Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eidolon/torch214")
    if list(path.glob("lib/python3*/site-packages/torch/lib/libtorch_cuda.so"))
]


# ---- reading headers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "functions"),
    [
        ('extern "C" int one(int a);', {"one": 1}),
        ('extern "C" { int none(void); int empty(); void two(int, char *b[2]); }', {"none": 0, "empty": 0, "two": 2}),
        ('extern "C" { int call(void (*f)(int, int), const struct s *p); }', {"call": 2}),
        ('extern "C" { __attribute__((visibility("default"))) int attribute(int a, int b); }', {"attribute": 2}),
        ('extern "C" { [[deprecated("old(1, 2)")]] int deprecated(int a); }', {"deprecated": 1}),
        ('extern "C" { int printf_like(const char *f, ...); }', {"printf_like": VARIADIC}),
        (
            'extern "C" { typedef int (*callback)(int, int); struct s { int (*f)(int); }; int after(int); }',
            {"after": 1},
        ),
        ('extern "C" { enum e { A = (1 << 2), B }; const int k = sizeof(int); int later(enum e x); }', {"later": 1}),
        ('extern "C" { static inline int inline_only(int a) { return a; } int real(int a); }', {"real": 1}),
        ('extern "C" { int body(int a) { return f(a); } }', {"body": 1}),
        ("int cpp(int); namespace n { int inside(int); } template <class T> int generic(T);", {}),
        ('extern "C" { int both(int); } static inline int both(long a) { return 0; }', {"both": OVERLOADED}),
        ('extern "C" { struct result make(int a, unsigned long long b, void *c); }', {"make": 3}),
    ],
)
def test_declared_functions(text: str, functions: dict[str, int]) -> None:
    assert declared(text) == functions


def test_include_dirs_take_the_wheels_of_one_cuda(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages" / "nvidia"
    for wheel in ("cu12", "cu13", "cudnn"):
        (site / wheel / "include").mkdir(parents=True)
    assert include_dirs([tmp_path], 13) == [site / "cu13" / "include", site / "cudnn" / "include"]
    assert include_dirs([site.parent], 12) == [site / "cu12" / "include", site / "cudnn" / "include"]


def test_headers_of_another_cuda_are_refused(tmp_path: Path) -> None:
    for library in TABLE:
        (tmp_path / library.headers[0][0]).touch()
    (tmp_path / "cuda.h").write_text("#define CUDA_VERSION 12080\n")
    command = [sys.executable, str(HERE / "generate.py"), "configure", "--cuda", "13", "--include", str(tmp_path)]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr == f"the headers in {tmp_path} are those of CUDA 12, not 13\n"
    assert not (tmp_path / "out").exists()


def test_missing_headers_name_the_wheel() -> None:
    assert "nvml.h (pip install nvidia-nvml-dev)" in missing_headers(TABLE, [])


# ---- what a stub does: a small library of our own, generated, compiled and called ------------------------------------

HEADER = """
#pragma once
#include <stdio.h>
typedef enum { TOY_OK = 0, TOY_NO_DRIVER = 4, TOY_UNSUPPORTED = 7 } toyStatus;
typedef struct toyOpaque *toyHandle;
typedef struct { int a, b; } toyPair;
typedef struct { char bytes[5000]; } toyHuge;
struct toyIncomplete;
#ifdef __cplusplus
extern "C" {
#endif
toyStatus toyOut(toyHandle *handle, int *number, toyPair *pair, double *real, const int *input);
toyStatus toyKept(void *buffer, struct toyIncomplete *unknown, toyHuge *huge, FILE *log, int (*call)(int *));
toyStatus toyDevice(float *matrix);
toyStatus toyInput(int *sizes);
const char *toyText(int code);
char *toyPointer(void);
size_t toySize(void);
int toyCount(void);
void toyNothing(int *out);
toyStatus toyByHand(int *out);
#ifdef __cplusplus
}
#endif
"""
CORE = """
#include "core.h"
#include <cstdio>
#include <cstdlib>
namespace eidolon {
const Config &config() {
  static Config c = [] { Config made{}; made.active = getenv("ACTIVE") != nullptr; return made; }();
  return c;
}
void unmodelled(const char *library, const char *function) { fprintf(stderr, "%s:%s\\n", library, function); }
bool is_device(const void *pointer) { return *static_cast<const float *>(pointer) == 42.0f; }
}
"""
MAIN = """
#include "toy.h"
#include <cstring>
extern "C" long toyInternal();
extern "C" toyStatus toyOut_ptsz(toyHandle *, int *, toyPair *, double *, const int *);
extern "C" toyStatus toyByHand(int *out) { *out = 1; return TOY_OK; }
int main() {
  int number = 9, input = 9, sizes = 9;
  double real = 9;
  toyPair pair = {9, 9};
  toyHandle handle = reinterpret_cast<toyHandle>(9);
  float device = 42, host = 9;
  char buffer[4] = "abc";
  static toyHuge huge = {{'x'}};
  printf("%d", toyOut(&handle, &number, &pair, &real, &input));
  printf(" %d %d %d %d %g %d\\n", handle != nullptr, number, pair.a, pair.b, real, input);
  printf("%d", toyOut(nullptr, nullptr, nullptr, nullptr, nullptr));
  printf("\\n%d", toyOut_ptsz(&handle, &number, &pair, &real, &input));
  printf("\\n%d", toyKept(buffer, reinterpret_cast<toyIncomplete *>(buffer), &huge, stdout, nullptr));
  printf(" %s %c\\n", buffer, huge.bytes[0]);
  printf("%d", toyDevice(&device));
  printf(" %g\\n", device);
  printf("%d", toyDevice(&host));
  printf(" %g\\n", host);
  printf("%d", toyInput(&sizes));
  printf(" %d\\n", sizes);
  printf("%s\\n", toyText(1));
  printf("%d %zu\\n", toyPointer() == nullptr, toySize());
  printf("%d\\n", toyCount());
  toyNothing(&number);
  printf("%ld\\n", toyInternal());
  printf("%d", toyByHand(&number));
  printf(" %d\\n", number);
}
"""
TOY = Library(
    name="toy",
    soname="libtoy.so.1",
    version="libtoy.so.1",
    wheel="toy",
    headers=(("toy.h",),),
    defines=(),
    prefix=("toy",),
    exclude=(),
    variant=r"_pt(ds|sz)$",
    status=(Status("toyStatus", "TOY_UNSUPPORTED", "TOY_NO_DRIVER"),),
    answers={"toyCount": "-3"},
    preserve=("toyInp*",),
    listed="library",
)
TOY_EXPORTS = [
    *("toyOut", "toyOut_ptsz", "toyKept", "toyDevice", "toyInput", "toyText"),
    *("toyPointer", "toySize", "toyCount", "toyNothing", "toyByHand", "toyInternal"),
]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("toy")
    (where / "toy.h").write_text(HEADER)
    (where / "core.cpp").write_text(CORE)
    (where / "main.cpp").write_text(MAIN)
    (where / "stubs.cpp").write_text(stub_sources(TOY, TOY_EXPORTS, "g++", [where])[0])
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fno-exceptions", f"-I{NATIVE}/stubs", f"-I{NATIVE}/core"]
    flags += ["-iquote", f"{NATIVE}/libs"]
    sources = [str(where / name) for name in ("core.cpp", "main.cpp", "stubs.cpp")]
    subprocess.run(["g++", *flags, f"-I{where}", *sources, "-o", str(where / "main")], check=True)
    return where / "main"


def test_a_stub_counts_clears_and_refuses(toy: Path) -> None:
    done = subprocess.run([str(toy)], env={"ACTIVE": "1"}, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines() == [
        "7 0 0 0 0 0 9",  # handle, number, both of the pair and the real are cleared, the const input is not
        "7",
        "7",
        "7 abc x",  # void *, incomplete, huge and FILE stay
        "7 42",  # device memory stays
        "7 0",
        "7 9",  # "preserve" in the table
        "not modelled by eidolon",
        "1 0",
        "-3",  # "answers" in the table
        "7",
        "0 1",  # written by hand: replaces its stub
    ]
    called = "Out Out Out_ptsz Kept Device Device Input Text Pointer Size Count Nothing Internal"
    assert sorted(done.stderr.splitlines()) == sorted(f"toy:toy{name}" for name in called.split())


def test_without_devices_a_stub_says_no_driver_and_counts_nothing(toy: Path) -> None:
    done = subprocess.run([str(toy)], env={}, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines()[:2] == ["4 0 0 0 0 0 9", "4"]
    assert not done.stderr


def test_version_script() -> None:
    assert version_script(TOY, ["toyA", "toyB"]) == (
        "libtoy.so.1 {\n  global:\n    toyA;\n    toyB;\n  local:\n    *;\n};\n"
    )


def test_sonames_header() -> None:
    text = sonames_header(TABLE)
    assert '"libcudart.so.13",' in text
    assert text.count('"') == 2 * len(TABLE)


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuda", [12, 13])
def test_the_table_is_whole(cuda: int) -> None:
    table = libraries(cuda)
    assert len({library.soname for library in table}) == len(table)
    for library in table:
        exports = read_exports(library, cuda)
        assert exports == sorted(set(exports)), library.soname
        assert all(library.recorded(name) for name in exports), library.soname


@pytest.mark.parametrize("library", TABLE, ids=lambda library: library.name)
def test_hand_written_sources_have_a_library(library: Library) -> None:
    """Each libs/*.cpp belongs to the library with the longest name that its own begins with, as CMake has it."""
    names = sorted((row.name for row in TABLE), key=len, reverse=True)
    for source in (NATIVE / "libs").glob("*.cpp"):
        assert any(source.stem.startswith(name) for name in names), source


# ---- the built libraries ---------------------------------------------------------------------------------------------


def built() -> Path | None:
    """Where the shim's libraries lie: named by EIDOLON_LIB, else of the package's own build."""
    named = os.environ.get("EIDOLON_LIB")
    places = [Path(named)] if named else [ROOT / "build/native/interposer/native/lib"]
    return next((place for place in places if (place / "libeidolon.so").is_file()), None)


@pytest.fixture(scope="module")
def lib() -> Path:
    found = built()
    if found is None:
        pytest.skip("the native build is not there (make setup)")
    return found


def symbols(path: Path, *, defined: bool) -> set[str]:
    """Dynamic symbols as "name@version" ("name" if unversioned)."""
    which = "--defined-only" if defined else "--undefined-only"
    out = subprocess.run(["nm", "-D", which, str(path)], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in out.splitlines()]
    return {row[-1].replace("@@", "@") for row in rows if row[-2] != "A"}


def dynamic(path: Path, tag: str) -> list[str]:
    out = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", out)


@pytest.mark.parametrize("library", TABLE, ids=lambda library: library.name)
def test_a_library_exports_what_the_real_one_does(lib: Path, library: Library) -> None:
    path = lib / library.soname
    suffix = f"@{library.version}" if library.version else ""
    assert symbols(path, defined=True) == {name + suffix for name in read_exports(library, CUDA)}
    assert dynamic(path, "SONAME") == [library.soname]


@pytest.mark.parametrize("library", TABLE, ids=lambda library: library.name)
def test_every_hand_written_function_is_an_export(lib: Path, library: Library) -> None:
    """A function that looks like the library's API but is neither exported nor declared by it is misspelt."""
    out = subprocess.run(["nm", "--defined-only", str(lib / library.soname)], capture_output=True, text=True).stdout
    hidden = {row[2].split(".")[0] for row in map(str.split, out.splitlines()) if len(row) == 3 and row[1] == "t"}
    odd = {name for name in hidden if library.recorded(name)} - set(read_exports(library, CUDA))
    if odd and HEADERS:
        for group in library.headers:
            odd -= set(declared(preprocess("g++", group, library.defines, HEADERS)))
    assert not odd


@pytest.mark.parametrize("soname", ["libeidolon.so", *(library.soname for library in TABLE)])
def test_no_cxx_runtime_leaks(lib: Path, soname: str) -> None:
    path = lib / soname
    interposed = {  # core/timeout.cpp
        "_ZNSt6chrono3_V212steady_clock3nowEv",
        "_ZN4c10d16ProcessGroupNCCL8WorkNCCL12checkTimeoutESt8optionalINSt6chrono8durationIlSt5ratioILl1ELl1000EEEEE",
    }
    defined = symbols(path, defined=True) - (interposed if soname == "libeidolon.so" else set())
    assert not {name for name in defined if name.startswith("_") and "eidolon" not in name} - {
        name for name in defined if name.startswith(("__cuda", "__nv", "libcu"))
    }
    older = {"libpthread.so.0", "libdl.so.2"}  # parts of libc.so.6 since glibc 2.34
    assert set(dynamic(path, "NEEDED")) <= {"libeidolon.so", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"} | older
    assert dynamic(path, "RUNPATH") == ["$ORIGIN"]
    assert not {name for name in symbols(path, defined=False) if "GLIBCXX" in name or "CXXABI" in name}


@pytest.mark.parametrize("torch", TORCHES, ids=lambda path: path.name)
def test_everything_torch_imports_is_there(lib: Path, torch: Path) -> None:
    site = next(torch.glob("lib/python3*/site-packages"))
    ours: set[str] = set().union(*(symbols(lib / library.soname, defined=True) for library in TABLE))
    versions = {library.version for library in TABLE if library.version}
    wanted: set[str] = set()
    for path in [*site.glob("torch/lib/*.so"), *site.glob("torch/*.so")]:
        imported = symbols(path, defined=False)
        wanted |= {name for name in imported if name.partition("@")[2] in versions}
        wanted |= {name for name in imported if "@" not in name and re.match(r"(cu[A-Z]|cusparseLt|nccl|nvml)", name)}
    assert len(wanted) > 500
    assert not wanted - ours


@pytest.mark.parametrize("cuda", [12, 13])
def test_a_list_is_recorded_for_every_soname(cuda: int) -> None:
    recorded = {path.name for path in (HERE / "exports" / f"cu{cuda}").glob("*.txt")}
    assert recorded == {f"{library.soname}.txt" for library in libraries(cuda)}


# ---- the built libraries, called -------------------------------------------------------------------------------------

CALL = """
import ctypes
library = ctypes.CDLL("libcurand.so.10")
generator = ctypes.c_void_p(5)
print(library.curandCreateGenerator(ctypes.byref(generator), 100), generator.value)
"""


def call(lib: Path, code: str, directory: Path | None) -> list[str]:
    environment = {"LD_LIBRARY_PATH": str(lib), "PATH": os.environ["PATH"]}
    if directory:
        (directory / "ranks").mkdir(exist_ok=True)
        (directory / "server.conf").write_text("mode=null\nserver=1\ndevices=2\ngpu.name=NVIDIA H100 80GB HBM3\n")
        environment["EIDOLON_DIR"] = str(directory)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_built_stub_refuses(lib: Path, tmp_path: Path) -> None:
    assert call(lib, CALL, tmp_path) == ["204 None"]  # CURAND_STATUS_ARCH_MISMATCH


def test_a_built_stub_without_devices(lib: Path) -> None:
    assert call(lib, CALL, None) == ["203 None"]  # CURAND_STATUS_INITIALIZATION_FAILED


NVML_AND_CUDA = """
import ctypes
nvml, cuda = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
assert nvml.nvmlInit_v2() == 0 and cuda.cuInit(0) == 0
count, devices = ctypes.c_uint(), ctypes.c_int()
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and cuda.cuDeviceGetCount(ctypes.byref(devices)) == 0
print(count.value, devices.value)
for i in range(count.value):
    handle, name, text, raw = (
        ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96), (ctypes.c_ubyte * 16)()
    )
    assert nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(handle)) == 0
    assert nvml.nvmlDeviceGetName(handle, name, 96) == 0 and cuda.cuDeviceGetName(text, 96, i) == 0
    print(name.value == text.value)
    assert nvml.nvmlDeviceGetUUID(handle, name, 96) == 0 and cuda.cuDeviceGetUuid_v2(raw, i) == 0
    print(name.value.decode().removeprefix("GPU-").replace("-", "") == bytes(raw).hex())
    pci = ctypes.create_string_buffer(68)
    assert nvml.nvmlDeviceGetPciInfo_v3(handle, pci) == 0 and cuda.cuDeviceGetPCIBusId(text, 96, i) == 0
    print(pci.raw[36:].split(b"\\0")[0].decode()[4:] == text.value.decode(), text.value.decode())
print(nvml.nvmlDeviceGetHandleByIndex_v2(count.value, ctypes.byref(handle)), nvml.nvmlShutdown(), nvml.nvmlShutdown())
"""


def test_nvml_and_cuda_describe_the_same_devices(lib: Path, tmp_path: Path) -> None:
    assert call(lib, NVML_AND_CUDA, tmp_path) == [
        *("2 2", "True", "True", "True 0000:10:00.0", "True", "True", "True 0000:11:00.0"),
        "2 0 1",  # invalid argument; the second shutdown finds it uninitialised
    ]


def test_nvml_without_devices(lib: Path) -> None:
    code = "import ctypes\nprint(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
    assert call(lib, code, None) == ["9"]  # NVML_ERROR_DRIVER_NOT_LOADED


NVRTC = """
import ctypes
nvrtc, cuda = ctypes.CDLL("libnvrtc.so.13"), ctypes.CDLL("libcuda.so.1")
program, name, size = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_size_t()
source = b'extern "C" __launch_bounds__(128, 4) __global__ void plain(int n) {} '
source += b"template <class T> __global__ void scale(T x) {}"
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, None, 0, None, None) == 0
assert nvrtc.nvrtcAddNameExpression(program, b"scale<float>") == 0
print(nvrtc.nvrtcGetLoweredName(program, b"scale<float>", ctypes.byref(name)))
assert nvrtc.nvrtcCompileProgram(program, 0, None) == 0
assert nvrtc.nvrtcGetLoweredName(program, b"scale<float>", ctypes.byref(name)) == 0
print(name.value.decode(), nvrtc.nvrtcGetLoweredName(program, b"other", ctypes.byref(name)))
assert nvrtc.nvrtcGetLoweredName(program, b"scale<float>", ctypes.byref(name)) == 0
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for get, get_size in ((nvrtc.nvrtcGetPTX, nvrtc.nvrtcGetPTXSize), (nvrtc.nvrtcGetCUBIN, nvrtc.nvrtcGetCUBINSize)):
    assert get_size(program, ctypes.byref(size)) == 0
    image = ctypes.create_string_buffer(size.value)
    assert get(program, image) == 0
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    print(cuda.cuModuleLoadData(ctypes.byref(module), image))
    print([cuda.cuModuleGetFunction(ctypes.byref(function), module, n) for n in (b"plain", name.value)])
print(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)), program.value)
"""


def test_nvrtc_makes_modules_that_the_driver_loads(lib: Path, tmp_path: Path) -> None:
    assert call(lib, NVRTC, tmp_path) == [
        "9",  # no lowered names before compilation
        "_Z12scale_float_v 10",  # and "not valid" for a name that was not asked for
        *("0", "[0, 0]", "0", "[0, 0]"),
        "0 None",
    ]


CUPTI = """
import ctypes
cupti = ctypes.CDLL("libcupti.so.13")
handle, record, dropped, last = ctypes.c_void_p(), ctypes.c_void_p(5), ctypes.c_size_t(5), ctypes.c_uint64(5)
print(cupti.cuptiSubscribe(ctypes.byref(handle), None, None), bool(handle.value))
print(cupti.cuptiSubscribe(ctypes.byref(handle), None, None) != 0)
print(cupti.cuptiActivityEnable(3), cupti.cuptiActivityFlushAll(0))
print(cupti.cuptiActivityGetNextRecord(None, ctypes.c_size_t(0), ctypes.byref(record)), record.value)
print(cupti.cuptiActivityGetNumDroppedRecords(None, 0, ctypes.byref(dropped)), dropped.value)
for id in (7, 8):
    assert cupti.cuptiActivityPushExternalCorrelationId(1, ctypes.c_uint64(id)) == 0
pops = [(cupti.cuptiActivityPopExternalCorrelationId(1, ctypes.byref(last)), last.value) for _ in range(3)]
print(pops, cupti.cuptiUnsubscribe(handle))
print(cupti.cuptiEventGroupSetsCreate(None, ctypes.c_size_t(0), None, None))
"""


def test_cupti_starts_and_stops_with_no_records(lib: Path, tmp_path: Path) -> None:
    assert call(lib, CUPTI, tmp_path) == [
        *("0 True", "True", "0 0"),
        "12 None",  # CUPTI_ERROR_MAX_LIMIT_REACHED: no further record
        "0 0",
        "[(0, 8), (0, 7), (18, 7)] 0",  # CUPTI_ERROR_QUEUE_EMPTY
        "27",  # counters are not modelled: CUPTI_ERROR_NOT_SUPPORTED
    ]


CUFFT = """
import ctypes
cufft = ctypes.CDLL("libcufft.so.12")
plan, size = ctypes.c_int(), ctypes.c_size_t(5)
n = (ctypes.c_longlong * 2)(4, 6)
print(cufft.cufftCreate(ctypes.byref(plan)))
print(cufft.cufftXtExec(plan, None, None, -1))
L = ctypes.c_longlong
real, complex_, work = 0, 4, ctypes.byref(size)  # CUDA_R_32F, CUDA_C_32F
print(cufft.cufftXtMakePlanMany(plan, 2, n, None, L(1), L(24), real, None, L(1), L(16), complex_, L(3), work, complex_))
print(size.value)
print(cufft.cufftXtExec(plan, None, None, -1), list(n))
print(cufft.cufftDestroy(plan), cufft.cufftDestroy(plan))
"""


def test_cufft_plans(lib: Path, tmp_path: Path) -> None:
    assert call(lib, CUFFT, tmp_path) == ["0", "1", "0", "0", "0 [4, 6]", "0 1"]  # 1: CUFFT_INVALID_PLAN
