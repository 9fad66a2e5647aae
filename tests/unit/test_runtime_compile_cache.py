"""Compiled kernels on disk: found again by content, never by mistake, never in the way."""

import hmac
import itertools
import os
import pickle
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numba
import numpy as np
import pytest

from fusion_advisor.runtime import compile_cache, cpu_kernel, loading

TEXT = """
from numba import float32, prange
from fusion_advisor.runtime import cpu_math

def kernel(x, out):
    for i in prange(out.size):
        out[i] = cpu_math.tanh(x[i]) * float32(FACTOR)
"""

PROGRAM = """
import sys
import numpy as np
from fusion_advisor.runtime import load_kernel
from fusion_advisor.runtime.loading import text_hash
text = sys.stdin.read()
kernel = load_kernel(text, "fused", text_hash(text))["fused"]
x = np.linspace(-2, 2, 7, dtype=np.float32)
outs = [np.empty_like(x), np.empty_like(x)]
kernel.serial(x, outs[0])
kernel.parallel(x, outs[1])
assert np.array_equal(*outs)
print([twin.stats.cache_hits[next(iter(twin.stats.cache_hits))] if twin.stats.cache_hits else 0
       for twin in (kernel.serial, kernel.parallel)], float(outs[0][0]))
"""


def _function(factor: float, **more: object) -> types.FunctionType:
    namespace: dict[str, object] = {"__name__": "kernels_of_a_test", **more}
    exec(TEXT.replace("FACTOR", repr(factor)), namespace)
    found = namespace["kernel"]
    assert isinstance(found, types.FunctionType)
    return found


def test_a_literal_a_variant_and_the_module_are_part_of_the_content() -> None:
    one = _function(0.5)
    key = compile_cache.content_key(one, "serial")
    assert key and key == compile_cache.content_key(_function(0.5), "serial")
    assert key != compile_cache.content_key(_function(0.25), "serial")
    assert key != compile_cache.content_key(one, "parallel")
    assert key != compile_cache.content_key(_function(0.5, __name__="another"), "serial")


def test_what_a_kernel_calls_is_part_of_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    key = compile_cache.content_key(_function(0.5))
    monkeypatch.setattr(compile_cache, "_maths_digest", lambda: "another version of the maths")
    assert compile_cache.content_key(_function(0.5)) != key


def test_functions_whose_code_may_change_elsewhere_are_not_kept() -> None:
    own = numba.njit(lambda value: value)
    for name in ("helper", "FACTOR"):
        namespace: dict[str, object] = {"__name__": "m", "helper": own, "FACTOR": 2.0}
        exec(f"def kernel(x, out):\n    out[0] = {name}", namespace)
        assert compile_cache.content_key(namespace["kernel"]) == ""  # type: ignore[arg-type]
    factor = 3.0

    def closure(x: np.ndarray, out: np.ndarray) -> None:
        out[0] = factor * x[0]

    assert compile_cache.content_key(closure) == ""


def _run(text: str, cache: Path) -> str:
    environment = dict(os.environ, XDG_CACHE_HOME=str(cache))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=text, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_process_finds_both_twins_and_survives_damage(tmp_path: Path) -> None:
    text = TEXT.replace("FACTOR", "0.5").replace("def kernel", "def body")
    text += "\nfrom fusion_advisor.runtime import cpu_kernel\nfused = cpu_kernel(body)\n"
    first = _run(text, tmp_path)
    assert first.startswith("[0, 0]")
    assert _run(text, tmp_path) == first.replace("[0, 0]", "[1, 1]")
    folder = tmp_path / "fusion_advisor" / "kernels" / "compiled"
    assert folder.stat().st_mode & 0o077 == 0
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:40] + b"damaged")
    assert _run(text, tmp_path) == first


class Canary:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._path),)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test alone; returns the folder of kernel texts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fusion_advisor" / "kernels"


def _signed(name: str, content: bytes, key: bytes) -> bytes:
    """An entry as whoever has ``key`` would write it."""
    magic = compile_cache._MAGIC
    return magic + hmac.digest(key, magic + name.encode() + b"\n" + content, "sha256") + content


def test_an_entry_that_was_not_written_here_is_not_unpickled(cache: Path, tmp_path: Path) -> None:
    entries = compile_cache.Entries("a kernel")
    entries.save("sig", {"code": 1})
    path, canary = entries.path("sig"), tmp_path / "ran"
    written, evil = path.read_bytes(), pickle.dumps(Canary(canary))
    key = (cache / "signing.key").read_bytes()
    start = len(compile_cache._MAGIC) + 32
    planted = {
        "a bare pickle": evil,
        "no signature": compile_cache._MAGIC + evil,
        "another's signature": written[:start] + evil,
        "another user's key": _signed(path.name, evil, secrets.token_bytes(32)),
        "another entry's signature": _signed("other.kernel", evil, key),
        "another format": _signed(path.name, evil, key).replace(b"kernel 2", b"kernel 0"),
        "one bit": written[:-1] + bytes([written[-1] ^ 1]),
    }
    for case, content in planted.items():
        path.write_bytes(content)
        assert entries.load("sig") is None, case
        assert not canary.exists(), case
    path.write_bytes(written)
    assert entries.load("sig") == {"code": 1}
    path.write_bytes(_signed(path.name, evil, key))  # the canary does sing: the key is what counts
    entries.load("sig")
    assert canary.exists()


def test_entries_are_told_apart_by_kernel_signature_and_name(cache: Path) -> None:
    one, two = compile_cache.Entries("one"), compile_cache.Entries("two")
    one.save("sig", 1)
    assert (one.load("sig"), one.load("other"), two.load("sig")) == (1, None, None)
    os.replace(one.path("sig"), two.path("sig"))  # renamed, as a whole
    assert two.load("sig") is None


@pytest.mark.parametrize("keep", [0, 1, 33, 34, 64, 65, 66, -1])
def test_a_truncated_entry_is_as_none_and_is_written_anew(cache: Path, keep: int) -> None:
    entries = compile_cache.Entries("a kernel")
    entries.save("sig", list(range(40)))
    path = entries.path("sig")
    path.write_bytes(path.read_bytes()[:keep])
    assert entries.load("sig") is None
    entries.save("sig", "again")
    assert entries.load("sig") == "again"


def test_files_and_keys_of_others_are_not_read(cache: Path, tmp_path: Path) -> None:
    entries = compile_cache.Entries("a kernel")
    entries.save("sig", 1)
    path, key = entries.path("sig"), cache / "signing.key"
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, key)] == [0o600, 0o600]

    def refused() -> bool:
        try:
            return entries.load("sig") is None
        except OSError:
            return True

    path.chmod(0o620)  # the group may have written it
    assert refused()
    path.chmod(0o600)
    assert entries.load("sig") == 1
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert refused()
    path.unlink()
    os.link(elsewhere, path)
    assert refused()
    path.unlink()
    elsewhere.rename(path)
    assert entries.load("sig") == 1
    for planted, mode in ((b"k" * 32, 0o644), (b"k" * 31, 0o600), (b"", 0o600)):
        key.unlink()
        key.write_bytes(planted)
        key.chmod(mode)
        path.write_bytes(_signed(path.name, pickle.dumps("planted"), planted))
        assert entries.load("sig") is None
        assert key.read_bytes() != planted and stat.S_IMODE(key.stat().st_mode) == 0o600
    entries.save("sig", 2)
    assert entries.load("sig") == 2


def test_a_link_in_the_place_of_the_folder_is_not_followed(cache: Path, tmp_path: Path) -> None:
    compile_cache.Entries("a kernel").save("sig", 1)
    folder = cache / "compiled"
    (tmp_path / "theirs").mkdir()
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="not a folder of this user"):
        compile_cache.folder()
    kernel = cpu_kernel(_function(3.0, __name__=__name__))
    x = np.ones(5, np.float32)
    out = np.empty_like(x)
    kernel.serial(x, out)  # compiled, not kept, no error
    assert np.allclose(out, 3 * np.tanh(1.0))
    assert not [*(tmp_path / "theirs").iterdir()]


@pytest.mark.parametrize("at", ["fusion_advisor", "fusion_advisor/kernels"])
def test_a_folder_that_is_a_link_is_avoided(cache: Path, tmp_path: Path, at: str) -> None:
    (tmp_path / "theirs" / "kernels" / "compiled").mkdir(parents=True)
    link = tmp_path / "cache" / at
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "theirs")
    compile_cache.Entries("a kernel").save("sig", 1)
    assert not [one for one in (tmp_path / "theirs").rglob("*") if one.is_file()]
    assert compile_cache.Entries("a kernel").load("sig") == 1


def test_a_cache_that_anybody_could_replace_is_not_used(cache: Path, tmp_path: Path) -> None:
    base = tmp_path / "cache"
    base.mkdir()
    base.chmod(0o777)  # without the sticky bit: whoever likes renames what lies in it
    assert tmp_path not in loading.cache_directory().parents
    base.chmod(0o1777)
    assert loading.cache_directory() == cache
    (base / "fusion_advisor").chmod(0o777)
    assert loading.cache_directory() == cache
    assert stat.S_IMODE((base / "fusion_advisor").stat().st_mode) == 0o700


def test_a_temporary_folder_made_anew_by_another_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(loading, "_fallback_directory", None)
    first = loading.cache_directory()
    assert first.parent == tmp_path and loading.cache_directory() == first
    first.rmdir()
    (tmp_path / "theirs").mkdir()
    first.symlink_to(tmp_path / "theirs")
    second = loading.cache_directory()
    assert second not in (first, tmp_path / "theirs")


HAMMER = """
import sys
from fusion_advisor.runtime import compile_cache
entries = compile_cache.Entries("hammered")
print("ready", flush=True)
sys.stdin.readline()
seen = []
for number in range(300):
    entries.save("sig", [number] * 2000)
    found = entries.load("sig")
    assert found is None or (len(found) == 2000 and len(set(found)) == 1), found
    seen.append(found is not None)
assert sum(seen) > 100, sum(seen)
"""


def test_two_processes_that_write_at_once_read_whole_entries(cache: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:  # no key is there yet: both make one
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    left = {file.name for file in cache.rglob("*") if file.is_file()}
    assert len(left) == 2 and not any(name.endswith(".tmp") for name in left)


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "MOST_FILES", 8)
    for number in range(9):
        file = tmp_path / str(number)
        file.touch()
        os.utime(file, (number, number))
    compile_cache._prune(tmp_path.iterdir())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["3", "4", "5", "6", "7", "8"]


def test_a_place_that_cannot_be_written_costs_only_the_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> Path:
        raise OSError("read-only")

    monkeypatch.setattr(compile_cache, "folder", refuse)
    x = np.ones(5, np.float32)
    out = np.empty_like(x)
    cpu_kernel(_function(2.0, __name__=__name__)).serial(x, out)
    assert np.allclose(out, 2 * np.tanh(1.0))


def test_every_parallel_twin_is_compiled_with_the_same_options() -> None:
    from fusion_advisor.runtime import cpu_kernels

    before = dict(cpu_kernels._PARALLEL)
    for factor in (1.5, 2.5):
        kernel = cpu_kernel(_function(factor, __name__=__name__))
        assert kernel.parallel.targetoptions["parallel"] == before
        x = np.ones(5, np.float32)
        kernel.parallel(x, np.empty_like(x))
        assert before == cpu_kernels._PARALLEL


def test_functions_of_forked_processes_do_not_share_their_numbers() -> None:
    """What two forks of one process compile is told apart by the process that loads both."""
    from numba.core.bytecode import FunctionIdentity

    numbers = [next(FunctionIdentity._unique_ids)]
    for _ in range(2):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, str(next(FunctionIdentity._unique_ids)).encode())
            os._exit(0)
        os.waitpid(child, 0)
        numbers.append(int(os.read(read, 100)))
        os.close(read)
        os.close(write)
    numbers.sort()
    assert all(two - one > 1 << 20 for one, two in itertools.pairwise(numbers))
