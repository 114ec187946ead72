"""Makes a virtual environment and installs into it, starting from nothing but some Python.

    bootstrap.py VENV [--build-requires] [ARGUMENTS OF `uv pip install`]

Used by the Makefile. It needs only the standard library (of Python 3.6 or later) and copes with what new machines lack:

* ``python3`` is too old: a newer one is looked for on PATH, and this script starts over with it;
* ``uv`` is missing: it is installed into the environment by pip;
* ``ensurepip`` is missing (Debian without python3-venv): pip's own wheel, which runs without being installed, is
  fetched from the package index first.

Where packages come from is the user's choice: what pip is configured with (PIP_INDEX_URL and friends, pip.conf) is
handed on to uv, which does not read pip's settings. Files are cached by uv and hard-linked into the environment, so a
second checkout costs seconds.
"""

import configparser
import hashlib
import html.parser
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 14)
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3.14")
DEFAULT_INDEX = "https://pypi.org/simple"  # pip's own default


def main(arguments):
    """Runs the command line; returns the exit code."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return start_over(arguments)
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    python = Path(arguments[0]).resolve() / "bin" / "python"
    install = arguments[1:]
    if "--build-requires" in install:
        install.remove("--build-requires")
        install += build_requires()
    uv = make_environment(python)
    if not install:
        return 0
    return subprocess.call([uv, "pip", "install", "--python", str(python), *install], env=uv_environment())


def start_over(arguments):
    """Runs this script with a supported Python of PATH in place of this one."""
    for name in CANDIDATES:
        found = shutil.which(name)
        if found and runs(found):
            return subprocess.call([found, str(Path(__file__).resolve()), *arguments])
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    return (
        f"bootstrap: needs Python {oldest} to {newest}: {sys.executable} is {sys.version.split()[0]}, "
        f"and none of {', '.join(CANDIDATES)} is on PATH"
    )


def runs(python):
    """Whether this interpreter starts. Version managers put launchers on PATH for versions that are not installed."""
    return subprocess.call([python, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def build_requires():
    """The requirements of the build itself, from pyproject.toml, since the build runs without isolation."""
    import tomllib

    return tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]


def make_environment(python):
    """Makes the environment unless it is there. Returns the path of uv."""
    uv = shutil.which("uv")
    if uv and not runs(uv):
        uv = None
    directory = python.parent.parent
    if not python.exists() or not runs(str(python)):
        if uv:
            subprocess.check_call([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(directory)])
        else:
            import venv

            venv.create(str(directory), clear=True, symlinks=True, with_pip=False)
    if uv:
        return uv
    own = python.parent / "uv"
    if not own.exists():
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.check_call([str(python), str(pip_wheel(Path(scratch)) / "pip"), "install", "--quiet", "uv"])
    return str(own)


def pip_wheel(scratch):
    """A wheel of pip, which runs without being installed. It is the one that ensurepip holds, or one that is fetched
    now.
    """
    try:
        import ensurepip

        bundled = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    except ImportError:
        bundled = []
    return bundled[-1] if bundled else fetch_wheel("pip", scratch)


def fetch_wheel(project, directory):
    """Downloads the newest pure wheel of a project from the index, checks its hash and returns its path."""
    index = setting("index-url", DEFAULT_INDEX).rstrip("/")
    base, page = fetch(f"{index}/{project}/")
    links = Links()
    links.feed(page.decode())
    pattern = re.compile(rf"{re.escape(project)}-(\d+(?:\.\d+)*)-py3-none-any\.whl")
    wheels = []
    for link in links.found:
        address, digest = urllib.parse.urldefrag(urllib.parse.urljoin(base, link))
        name = urllib.parse.unquote(address.rsplit("/", 1)[-1])
        match = pattern.fullmatch(name)
        if match:
            wheels.append(([int(part) for part in match.group(1).split(".")], name, address, digest))
    if not wheels:
        sys.exit(f"bootstrap: the package index has no wheel of {project}")
    _, name, address, digest = max(wheels)
    _, content = fetch(address)
    algorithm, _, expected = digest.partition("=")
    if expected and hashlib.new(algorithm, content).hexdigest() != expected:
        sys.exit(f"bootstrap: {name} does not have the hash that the package index states")
    path = directory / name
    path.write_bytes(content)
    return path


def fetch(address):
    """The final address and the content at an address."""
    import ssl

    context = ssl.create_default_context(cafile=setting("cert"))
    try:
        with urllib.request.urlopen(address, timeout=60, context=context) as answer:
            return answer.url, answer.read()
    except OSError as error:
        return sys.exit(f"bootstrap: cannot fetch {address}: {error}")


class Links(html.parser.HTMLParser):
    """Collects the addresses that a page of the simple index links to."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        """Called for each tag."""
        if tag == "a":
            self.found.extend(value for name, value in attrs if name == "href" and value)


def setting(name, default=None):
    """A setting of pip, from its environment variable or else from its configuration files."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if not value:
        home = Path.home()
        configured = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
        files = [
            "/etc/pip.conf",
            home / ".pip" / "pip.conf",
            configured,
            os.environ.get("PIP_CONFIG_FILE") or os.devnull,
        ]
        parser = configparser.RawConfigParser()
        parser.read([str(file) for file in files], encoding="utf-8")
        value = parser.get("global", name, fallback=None) or parser.get("install", name, fallback=None)
    return value or default


def uv_environment():
    """The environment for uv. It is ours, with pip's settings under the names that uv reads."""
    environment = dict(os.environ)
    translated = {
        "UV_INDEX": setting("extra-index-url"),
        "SSL_CERT_FILE": setting("cert"),
        # uv, unlike pip, refuses a folder that does not exist.
        "UV_FIND_LINKS": ",".join(p for p in (setting("find-links") or "").split() if "://" in p or Path(p).is_dir()),
        "UV_HTTP_TIMEOUT": "300",  # seconds without progress; wheels of several 100 MB over slow lines
    }
    if "UV_INDEX_URL" not in environment:
        translated["UV_DEFAULT_INDEX"] = setting("index-url")
    for name, value in translated.items():
        if value:
            environment.setdefault(name, value)
    return environment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
