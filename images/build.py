"""Builds the container images and writes them as archives: ``python images/build.py [--base IMAGE]``.

    build/images/eidolon-operator.tar      for `kind load image-archive` or `ctr --namespace=k8s.io images import`
    build/images/eidolon-core.tar
    build/images/eidolon-interposer.tar
    build/images/eidolon-example.tar

Names are `REGISTRY/eidolon-NAME:VERSION`, the version is the package's. The builder is Docker if its daemon answers,
else buildah, which needs neither daemon nor registry. With Docker the base is Python's own slim image unless another
is named; with buildah it is made by debootstrap.

uv installs the Python packages into the build's context, outside of the build. They are for the Python that runs this
script, so the base must have the same. Archives are kept in the user's cache under a digest of all that goes into them,
so an unchanged checkout costs a second.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
REGISTRY = "ghcr.io/eidolon-sim"
TARGETS = ("operator", "core", "interposer", "example")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
DEFAULT_BASE = f"docker.io/library/python:{PYTHON}-slim-bookworm"
#: Debian's releases by the version of their python3.
DEBIAN = {"3.11": "bookworm", "3.13": "trixie"}
BASE_PACKAGES = ("python3", "libstdc++6")
#: What goes into the images; everything that `pip install .` reads.
SOURCES = (
    "pyproject.toml",
    "CMakeLists.txt",
    "README.md",
    "LICENSE",
    "images",
    "proto",
    "crds",
    "operator",
    "simcore",
    "interposer",
)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eidolon" / "images"
SCRATCH = REPOSITORY / "build" / "images"
KEPT_BUILDS = 3  # in the cache, 1.7 GB each: this checkout's, the one before, another checkout's
SHIM12 = REPOSITORY / "build" / "native12" / "interposer" / "native" / "lib"  # of `make native-cuda12`, if it was run


class ImageError(Exception):
    """An image cannot be built; the message says why."""


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", help="image to build on (default: Python's slim image, or one made by debootstrap)")
    parser.add_argument("--registry", default=REGISTRY, help=f"what names begin with (default: {REGISTRY})")
    arguments = parser.parse_args()
    try:
        for archive in build(arguments.base, arguments.registry):
            print(archive)
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


def build(base: str | None, registry: str) -> list[Path]:
    """Builds what is not in the cache; returns the archives.

    Raises:
        ImageError: there is no builder, or a build failed.
    """
    builder = Docker() if Docker.usable() else Buildah()
    variants = [*map(str, torch_sites()), SHIM12.exists()]
    key = digest(f"{registry} {base} {PYTHON} {type(builder).__name__} {variants}")
    kept = CACHE / key
    if not kept.exists():
        started = time.monotonic()
        CACHE.mkdir(parents=True, exist_ok=True)
        context = lay_out()
        partial = CACHE / f".{key}.{os.getpid()}"
        partial.mkdir()
        try:
            reference = base or builder.default_base()
            for target in TARGETS:
                name = f"{registry}/eidolon-{target}:{version()}"
                builder.build(context, target, reference, name)
                builder.save(name, partial / f"eidolon-{target}.tar")
            partial.rename(kept)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        forget_old_builds()
        builder.prune()
        print(f"images: built in {time.monotonic() - started:.0f} s", file=sys.stderr)
    archives = []
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for target in TARGETS:
        archive = SCRATCH / f"eidolon-{target}.tar"
        archive.unlink(missing_ok=True)
        link(str(kept / archive.name), str(archive))
        archives.append(archive)
    return archives


def forget_old_builds() -> None:
    """Removes all but the last few builds from the cache."""
    builds = [folder for folder in CACHE.iterdir() if (folder / f"eidolon-{TARGETS[0]}.tar").exists()]
    for old in sorted(builds, key=lambda folder: folder.stat().st_mtime, reverse=True)[KEPT_BUILDS:]:
        shutil.rmtree(old, ignore_errors=True)


def version() -> str:
    """The package's, which is the images' tag."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def digest(*settings: str) -> str:
    """Of everything that goes into the images."""
    hasher = hashlib.sha256("\n".join(settings).encode())
    for file in sources():
        hasher.update(f"{file.relative_to(REPOSITORY)}\n{file.stat().st_size}\n".encode())
        hasher.update(file.read_bytes())
    return hasher.hexdigest()[:16]


def sources() -> Iterator[Path]:
    """All files of SOURCES, in a fixed order."""
    for name in SOURCES:
        path = REPOSITORY / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (file for file in files if file.is_file() and "__pycache__" not in file.parts)


def lay_out() -> Path:
    """Installs Eidolon and what it needs into the context of the build; returns it."""
    context = SCRATCH / "context"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    for name in ("Dockerfile", "Base"):
        shutil.copyfile(REPOSITORY / "images" / name, context / name)
    wheels = SCRATCH / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        raise ImageError("uv is not on PATH: run `make setup` first")
    os.environ.setdefault("EIDOLON_TESTS", "ON")  # as `make setup` does: the two share their build directory
    run(
        uv,
        "build",
        "--wheel",
        "--no-build-isolation",
        "--quiet",
        f"--python={sys.executable}",
        f"--out-dir={wheels}",
        ".",
    )
    [wheel] = wheels.glob("*.whl")
    for name in ("dependencies", "kubernetes"):
        shutil.copytree(dependencies(uv, name), context / name, copy_function=link)
    only_new(context / "kubernetes", context / "dependencies")
    install(uv, context / "site", "--no-deps", str(wheel))
    strip(context / "site")
    add_variants(context / "interposer" / "eidolon_interposer")
    return context


def dependencies(uv: str, name: str) -> Path:
    """A folder with everything that Eidolon needs from others, with `kubernetes` also what its operator does.

    Kept in the user's cache, compiled, for as long as pyproject.toml asks for the same.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = sorted({*project["dependencies"], *project["optional-dependencies"].get(name, ())})
    kept = CACHE / f"{name}-{hashlib.sha256(repr((PYTHON, wanted)).encode()).hexdigest()[:16]}"
    if not kept.exists():
        partial = kept.with_name(f".{kept.name}.{os.getpid()}")
        try:
            install(uv, partial, *wanted)
            partial.rename(kept)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return kept


def link(source: str, target: str) -> None:
    """The same file under another name; a copy where that is another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def install(uv: str, directory: Path, *what: str) -> None:
    """Installs packages, compiled, into a folder."""
    options = ("--quiet", "--compile-bytecode", f"--python={sys.executable}", f"--target={directory}")
    run(uv, "pip", "install", *options, *what)


def add_variants(package: Path) -> None:
    """Lays beside the shim what is not part of the wheel: plugins by torch version, the shim for CUDA 12."""
    plugins = package / "lib" / "plugins"
    plugins.mkdir(parents=True)
    for site in torch_sites():
        run(sys.executable, "-m", "eidolon_interposer.plugin", "build", f"--torch-from={site}", f"--out={plugins}")
    if SHIM12.exists():
        (package / "lib12").mkdir()
        for library in SHIM12.glob("*.so*"):
            shutil.copyfile(library, package / "lib12" / library.name)
            run("strip", "--strip-debug", str(package / "lib12" / library.name))


def torch_sites() -> list[Path]:
    """The environments with a torch that a plugin is shipped for: those of `make setup` and `make setup-torch214`."""
    sites = (Path(sys.prefix), CACHE.parent / "torch214")
    return [site for site in sites if any(site.glob("lib/python3*/site-packages/torch/version.py"))]


def strip(directory: Path) -> None:
    """Takes debugging information out of our libraries: three quarters of their size."""
    for file in (*directory.glob("eidolon_*/**/*.so*"), *directory.glob("eidolon_*/bin/*")):
        run("strip", "--strip-debug", str(file))


def only_new(directory: Path, below: Path) -> None:
    """Removes from `directory` what the layer below it holds: the same package versions were installed in both."""
    for file in sorted(directory.rglob("*"), reverse=True):
        if file.is_dir():
            if not any(file.iterdir()):
                file.rmdir()
        elif (below / file.relative_to(directory)).exists():
            file.unlink()


class Docker:
    """Builds with a Docker daemon."""

    @staticmethod
    def usable() -> bool:
        """Whether a daemon answers."""
        docker = shutil.which("docker")
        return (
            docker is not None and subprocess.run([docker, "version"], capture_output=True, check=False).returncode == 0
        )

    def default_base(self) -> str:
        """The name of Python's own slim image."""
        return DEFAULT_BASE

    def build(self, context: Path, target: str, base: str, name: str) -> None:
        """Builds one target of the Dockerfile in a context, on a base image, under a name."""
        run("docker", "build", f"--target={target}", f"--build-arg=BASE={base}", f"--tag={name}", str(context))

    def save(self, name: str, archive: Path) -> None:
        """Writes an image that was built to an archive."""
        run("docker", "save", f"--output={archive}", name)

    def prune(self) -> None:
        """Does nothing: the daemon's storage is its owner's."""


class Buildah:
    """Builds with buildah in a storage of its own, in the user's cache."""

    def __init__(self) -> None:
        if shutil.which("buildah") is None:
            raise ImageError("neither a Docker daemon nor buildah is there (Debian: apt-get install buildah)")
        self._buildah = ("buildah", f"--root={CACHE / 'storage'}", f"--runroot={CACHE / 'run'}")

    def default_base(self) -> str:
        """Makes Debian's minimal system, once."""
        release = DEBIAN.get(PYTHON)
        if release is None:
            raise ImageError(f"no release of Debian has Python {PYTHON}: name a base with --base")
        name = f"localhost/eidolon-base:{release}"
        if (
            subprocess.run(
                [*self._buildah, "inspect", "--type=image", name], capture_output=True, check=False
            ).returncode
            == 0
        ):
            return name
        if shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin") is None:
            raise ImageError("debootstrap is not there: install it, or name a base with --base")
        context = SCRATCH / "base"
        shutil.rmtree(context, ignore_errors=True)
        root = context / "root"
        root.mkdir(parents=True)
        run("debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", release, str(root))
        excluded = (
            "./var/cache/apt/*",
            "./var/lib/apt/lists/*",
            "./usr/share/doc/*",
            "./usr/share/locale/*",
            "./dev/*",
        )
        run(
            "tar",
            "-C",
            str(root),
            *(f"--exclude={pattern}" for pattern in excluded),
            "-cf",
            str(context / "base.tar"),
            ".",
        )
        run(
            *self._buildah,
            "bud",
            "--quiet",
            f"--tag={name}",
            "--file",
            str(REPOSITORY / "images" / "Base"),
            str(context),
        )
        shutil.rmtree(context)
        return name

    def build(self, context: Path, target: str, base: str, name: str) -> None:
        """Builds one target of the Dockerfile in a context, on a base image, under a name."""
        options = ("--quiet", "--isolation=chroot", "--pull-never", "--layers", "--timestamp=0")
        run(
            *self._buildah,
            "bud",
            *options,
            f"--target={target}",
            f"--build-arg=BASE={base}",
            f"--tag={name}",
            str(context),
        )

    def save(self, name: str, archive: Path) -> None:
        """Writes an image that was built to an archive."""
        run(*self._buildah, "push", "--quiet", name, f"docker-archive:{archive}:{name}")

    def prune(self) -> None:
        """Removes from the storage what no name refers to any more: layers of earlier builds."""
        run(*self._buildah, "rmi", "--prune", "--force")


def run(*command: str) -> None:
    """Runs a program from the top of the checkout; its output is shown if it fails."""
    done = subprocess.run(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise ImageError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")


if __name__ == "__main__":
    sys.exit(main())
