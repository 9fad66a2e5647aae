"""Faults in where things are read and written: indices, sizes, memory, threads, processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mutations import Kernel, fault
from mutations_values import _zero

_RECORDED_BEYOND = (600, 5_000, 40_000, 66_000)  # beyond the recorded sizes, each of them


def _flat(kernel: Kernel) -> str:
    """A CPU kernel's element number, as an expression of its loop variables."""
    loops = re.findall(r"for (\w+) in (?:prange|range)\(([\w.]+)\)", kernel.body)
    place = loops[0][0]
    for variable, size in loops[1:]:
        place = f"({place} * {size} + {variable})"
    return place


def _place(kernel: Kernel) -> str:
    return f"int64({kernel.thread})" if kernel.cuda else _flat(kernel)


def _size(kernel: Kernel) -> str:
    return f"int64({kernel.count})" if kernel.cuda else f"{_outputs(kernel)[0]}.size"


def _outputs(kernel: Kernel) -> list[str]:
    return [one.name for one in kernel.problem.kernel.program.outputs]


def _one_loop(kernel: Kernel) -> bool:
    """Whether all outputs have one iteration space (its size is then theirs)."""
    return not kernel.problem.kernel.program.further


def _only_where(kernel: Kernel, condition: str) -> Iterator[str]:
    """Wrong results at some places only."""
    if not _one_loop(kernel):
        return
    for store in kernel.stores:
        zero = _zero(kernel, store.group(2))
        yield kernel.with_expression(store, f"({zero} if {condition} else {store.group(4)})")


@fault("last element wrong")
def last(kernel: Kernel) -> Iterator[str]:
    yield from _only_where(kernel, f"{_place(kernel)} == {_size(kernel)} - 1")


@fault("first element wrong")
def first(kernel: Kernel) -> Iterator[str]:
    yield from _only_where(kernel, f"{_place(kernel)} == 0")


@fault("one row wrong")
def one_row(kernel: Kernel) -> Iterator[str]:
    yield from _only_where(kernel, f"{_place(kernel)} // 8 == 5")


@fault("wrong at the edge of a block", "cuda")
def block_edge(kernel: Kernel) -> Iterator[str]:
    yield from _only_where(kernel, f"{_place(kernel)} % 256 == 255")


@fault("wrong in the second block", "cuda")
def second_block(kernel: Kernel) -> Iterator[str]:
    yield from _only_where(kernel, "cuda.blockIdx.x == 1")


@fault("wrong at odd sizes only")
def odd_sizes(kernel: Kernel) -> Iterator[str]:
    yield from _only_where(kernel, f"{_size(kernel)} % 2 == 1")


@fault("wrong at even sizes only")
def even_sizes(kernel: Kernel) -> Iterator[str]:
    yield from _only_where(kernel, f"{_size(kernel)} % 2 == 0")


@fault("wrong where a size leaves 2 to 7 of 8", sizes=(4_098, 4_099, 4_100, 4_101, 4_102, 4_103))
def remainder_of_size(kernel: Kernel) -> Iterator[str]:
    if len(kernel.problem.kernel.program.groups) == 1 and _one_loop(kernel):
        for left in range(2, 8):
            yield from _only_where(kernel, f"{_size(kernel)} % 8 == {left}")


@fault("wrong for one element alone")
def single(kernel: Kernel) -> Iterator[str]:
    yield from _only_where(kernel, f"{_size(kernel)} == 1")


@fault("wrong beyond the recorded size", sizes=(70_001,))
def beyond(kernel: Kernel) -> Iterator[str]:
    for count in _RECORDED_BEYOND:
        yield from _only_where(kernel, f"{_place(kernel)} >= {count}")


@fault("wrong for large launches only", sizes=(70_001,))
def large(kernel: Kernel) -> Iterator[str]:
    for count in _RECORDED_BEYOND:
        yield from _only_where(kernel, f"{_size(kernel)} > {count} and {_place(kernel)} == 7")


# --- reading the wrong place ----------------------------------------------------------


def _reads(kernel: Kernel) -> Iterator[tuple[re.Match[str], str, str]]:
    """Every place where an operand is read: the match, the array, the index."""
    names = "|".join(re.escape(entry.name) for entry in kernel.operands)
    for match in re.finditer(rf"\b({names})\[([^\n]+?)\](?=\)?(?:\n|  #))", kernel.body):
        yield match, match.group(1), match.group(2)


def _reading(kernel: Kernel, match: re.Match[str], index: str) -> str:
    return f"{kernel.body[: match.start(2)]}{index}{kernel.body[match.end(2) :]}"


def _wrapped(kernel: Kernel, index: str) -> str:
    return f"uint32({index})" if kernel.cuda else index


@fault("neighbour read")
def off_by_one(kernel: Kernel) -> Iterator[str]:
    for match, array, index in _reads(kernel):
        if "," not in index:
            moved = f"({index} + 1) % {array}.size"
            yield _reading(kernel, match, _wrapped(kernel, moved))
        else:
            head, _, final = index.rpartition(", ")
            yield _reading(kernel, match, f"{head}, ({final} + 1) % {array}.shape[-1]")


@fault("neighbour read at the last element")
def off_by_one_at_the_end(kernel: Kernel) -> Iterator[str]:
    for match, array, index in _reads(kernel):
        if "," not in index:
            moved = f"{index} - 1 if {index} > 0 and {index} + 1 == {array}.size else {index}"
            yield _reading(kernel, match, _wrapped(kernel, moved))


@fault("wrong broadcast dimension")
def wrong_dimension(kernel: Kernel) -> Iterator[str]:
    loops = re.findall(r"for (\w+) in p?range", kernel.body)
    names = ["row", "column", "i0", "i1", "i2", "i3", "i4"] if kernel.cuda else loops
    for match, array, index in _reads(kernel):
        for other in names:
            known = re.search(rf"\b{other} = ", kernel.body) or not kernel.cuda
            if known and index in names and other != index:
                moved = f"{other} % {array}.size"
                yield _reading(kernel, match, _wrapped(kernel, moved))


@fault("two axes of an operand exchanged", "cpu")
def exchanged_axes(kernel: Kernel) -> Iterator[str]:
    for match, array, index in _reads(kernel):
        parts = index.split(", ")
        if len(parts) > 1:
            moved = [f"{parts[-1]} % {array}.shape[{len(parts) - 2}]",
                     f"{parts[-2]} % {array}.shape[{len(parts) - 1}]"]  # fmt: skip
            yield _reading(kernel, match, ", ".join([*parts[:-2], *moved]))


@fault("row and column exchanged", "cuda")
def exchanged_rows(kernel: Kernel) -> Iterator[str]:
    match = re.search(r"row = (.+)\n +column = (.+)\n", kernel.body)
    if match:
        pair = match.group(0)
        row, column = match.group(1), match.group(2)
        text = pair.replace(f"row = {row}", f"row = {column}", 1)
        yield kernel.body.replace(pair, text.replace(f"column = {column}", f"column = {row}"))


@fault("one broadcast value for all")
def always_first(kernel: Kernel) -> Iterator[str]:
    for match, _, index in _reads(kernel):
        if index != "0":
            zeros = ", ".join("0" for _ in index.split(", ")) if not kernel.cuda else "0"
            yield _reading(kernel, match, zeros)


@fault("stride ignored", "cuda")
def no_stride(kernel: Kernel) -> Iterator[str]:
    for match in re.finditer(r"uint32\((\w+) \* \w+_stride\d\)", kernel.body):
        yield f"{kernel.body[: match.start()]}{match.group(1)}{kernel.body[match.end() :]}"


@fault("strides exchanged", "cuda")
def exchanged_strides(kernel: Kernel) -> Iterator[str]:
    names = re.findall(r"\w+_stride\d", kernel.body.partition(":")[0])
    if len(names) > 1:
        head, _, rest = kernel.body.partition(":\n")
        rest = rest.replace(names[0], "@").replace(names[1], names[0]).replace("@", names[1])
        yield f"{head}:\n{rest}"


@fault("index cut to 16 bits", sizes=(70_001,))
def cut_to_16(kernel: Kernel) -> Iterator[str]:
    for match, _, index in _reads(kernel):
        parts = index.split(", ") if not kernel.cuda else [index]
        cut = [f"{part} & 65535" for part in parts]
        yield _reading(kernel, match, ", ".join(_wrapped(kernel, part) for part in cut))


@fault("index cut to 12 bits", sizes=(70_001,))
def cut_to_12(kernel: Kernel) -> Iterator[str]:
    for match, _, index in _reads(kernel):
        parts = index.split(", ") if not kernel.cuda else [index]
        cut = [f"{part} & 4095" for part in parts]
        yield _reading(kernel, match, ", ".join(_wrapped(kernel, part) for part in cut))


# --- writing the wrong place, or nothing ----------------------------------------------


@fault("tail skipped", by_construction=True)
def skipped_tail(kernel: Kernel) -> Iterator[str]:
    if kernel.cuda:
        match = re.search(r"if \w+ < (.+):\n", kernel.body)
        assert match is not None
        for keep in ("{0} - 1", "({0} // 4) * 4", "({0} // 256) * 256"):
            yield (
                kernel.body[: match.start(1)]
                + f"uint32({keep.format(match.group(1))})"
                + kernel.body[match.end(1) :]
            )
        return
    for match in re.finditer(r"p?range\(([\w.]+)\)", kernel.body):
        for keep in ("{0} - 1", "{0} // 4 * 4"):
            text = keep.format(match.group(1))
            yield kernel.body[: match.start(1)] + text + kernel.body[match.end(1) :]


@fault("one thread too many", "cuda", by_construction=True)
def one_too_many(kernel: Kernel) -> Iterator[str]:
    yield re.sub(r"if (\w+) < (.+):\n", r"if \1 <= \2:\n", kernel.body)


@fault("no bounds check", "cuda", by_construction=True)
def unbounded(kernel: Kernel) -> Iterator[str]:
    yield re.sub(r"if (\w+) < (.+):\n", r"if \2 > 0:\n", kernel.body)


@fault("only the first block", "cuda", by_construction=True)
def first_block(kernel: Kernel) -> Iterator[str]:
    yield kernel.body.replace("uint32(cuda.grid(1))", "uint32(cuda.threadIdx.x)")


@fault("a block size taken for granted", "cuda", by_construction=True)
def fixed_block(kernel: Kernel) -> Iterator[str]:
    grid = "uint32(cuda.blockIdx.x * 256 + cuda.threadIdx.x)"
    yield kernel.body.replace("uint32(cuda.grid(1))", grid)


@fault("nothing written", by_construction=True)
def returns(kernel: Kernel) -> Iterator[str]:
    head, _, rest = kernel.body.partition(":\n")
    yield f"{head}:\n    return\n{rest}"


@fault("one result not written", by_construction=True)
def unwritten(kernel: Kernel) -> Iterator[str]:
    for store in kernel.stores:
        yield f"{kernel.body[: store.start()]}{store.group(1)}pass{kernel.body[store.end() :]}"


@fault("an element left as it was", by_construction=True)
def stale_element(kernel: Kernel) -> Iterator[str]:
    for store in kernel.stores:
        yield kernel.around(store, f"{_place(kernel)} != 3")


@fault("elements of one value left as they were", by_construction=True)
def stale_values(kernel: Kernel) -> Iterator[str]:
    names = [line.group(2) for line in kernel.loads]
    for store in kernel.stores:
        if _one_loop(kernel):
            yield kernel.around(store, f"{names[-1]} != 1")


@fault("adds to what its output held", by_construction=True)
def accumulates(kernel: Kernel) -> Iterator[str]:
    for store in kernel.stores:
        dtype = next(o.dtype for o in kernel.problem.kernel.program.outputs
                     if o.name == store.group(2))  # fmt: skip
        if dtype in ("float32", "float64", "int32", "int64"):
            place = f"{store.group(2)}[{store.group(3)}]"
            yield kernel.with_expression(store, f"{store.group(4)} + {place}")


@fault("result written to another place as well", by_construction=True)
def also_elsewhere(kernel: Kernel) -> Iterator[str]:
    """Later places are written right again when their turn comes, in one order of threads."""
    for store in kernel.stores:
        array, place = store.group(2), store.group(3)
        if "," not in place:
            index = f"{place} + 1 if {place} + 1 < {array}.size else {place}"
            yield kernel.before(store, f"{array}[{_wrapped(kernel, index)}] = {store.group(4)}")


@fault("written past the end", by_construction=True)
def past_the_end(kernel: Kernel) -> Iterator[str]:
    for store in kernel.stores:
        array, place = store.group(2), store.group(3)
        if "," not in place:
            yield kernel.before(store, f"if {place} == 0:", f"    {array}[{array}.size] = "
                                f"{_zero(kernel, array)}")  # fmt: skip


@fault("written before the start", by_construction=True)
def before_the_start(kernel: Kernel) -> Iterator[str]:
    for store in kernel.stores:
        array, place = store.group(2), store.group(3)
        if "," not in place:
            yield kernel.before(store, f"if {place} == 0:", f"    {array}[-{array}.size - 1] = "
                                f"{_zero(kernel, array)}")  # fmt: skip


def _unlikely(kernel: Kernel, match: re.Match[str], array: str, index: str) -> Iterator[str]:
    """Reads a foreign element that decides nothing, in a way no compiler may leave out."""
    dtype = next(entry.dtype for entry in kernel.operands if entry.name == array)
    if dtype not in ("float32", "float64", "int64"):
        return
    rare = {"float32": "float32(1.2345679e-33)", "float64": "1.2345678901234567e-300"}
    for store in kernel.stores:
        test = f"{array}[{index}] == {rare.get(dtype, 'int64(1234567890123456789)')}"
        zero = _zero(kernel, store.group(2))
        yield kernel.with_expression(store, f"({zero} if {test} else {store.group(4)})")


@fault("reads past the end, to no effect", by_construction=True)
def reads_past(kernel: Kernel) -> Iterator[str]:
    for match, array, index in _reads(kernel):
        if "," not in index and index != "0":
            yield from _unlikely(kernel, match, array, _wrapped(kernel, f"{index} + 1"))


@fault("reads before the start, to no effect", by_construction=True)
def reads_before(kernel: Kernel) -> Iterator[str]:
    for match, array, index in _reads(kernel):
        if "," not in index and index != "0":
            before = f"int64({index}) - 1 if {index} > 0 else -{array}.size - 1"
            yield from _unlikely(kernel, match, array, before)


# --- inputs ---------------------------------------------------------------------------


@fault("input changed", by_construction=True)
def changed_input(kernel: Kernel) -> Iterator[str]:
    for _, array, index in _reads(kernel):
        for store in kernel.stores[:1]:
            if not re.search(r"\b(j|k|i\d)\b", index) or "," in index:
                yield kernel.before(store, f"{array}[{index}] = 0")


@fault("input changed and restored", by_construction=True)
def restored_input(kernel: Kernel) -> Iterator[str]:
    """Another load between the two keeps the compiler from leaving both writes out."""
    reads = list(_reads(kernel))
    if len(reads) > 1:
        (_, array, index), (_, other, place) = reads[0], reads[1]
        stores = kernel.stores
        if array != other and len(stores) == 1 and index not in ("0",):
            store = stores[0]
            keep, seen = f"{array}[{index}]", f"{other}[{place}]"
            lines = (f"kept = {keep}", f"{keep} = {seen}")
            body = kernel.before(store, *lines)
            end = body.index("\n", body.index(store.group(0).lstrip()))
            yield f"{body[:end]}\n{store.group(1)}{keep} = kept{body[end:]}"


# --- what only some runs show ---------------------------------------------------------


@fault("right only in the order of one thread", "cpu", by_construction=True)
def carried(kernel: Kernel) -> Iterator[str]:
    """A counter stands for the index: in parallel every thread has one of its own."""
    store = kernel.stores[0]
    if len(kernel.stores) == 1 and "," not in store.group(3):
        head, loop, rest = kernel.body.partition("    for ")
        body = f"{head}    counter = 0\n{loop}{rest}"
        array = store.group(2)
        old = f"{array}[{store.group(3)}] = {store.group(4)}"
        new = f"{array}[counter] = {store.group(4)}\n        counter += 1"
        yield body.replace(old, new)


_TWIN = '''class _Twin(CpuKernel):
    """A kernel one of whose twins is another function."""

    @property
    def {twin}(self):
        return numba.njit(error_model="numpy")(_wrong{suffix}.py_func)


{wrong}

{right}
{name} = _Twin({name}.py_func)
'''


def _twins(kernel: Kernel, twin: str) -> Iterator[str]:
    name = re.search(r"def (\w+)\(", kernel.body)
    assert name is not None
    for store in kernel.stores[:1]:
        wrong = kernel.with_expression(store, _zero(kernel, store.group(2)))
        wrong = wrong.replace(f"def {name.group(1)}(", "def _wrong(")
        text = _TWIN.format(
            twin=twin, suffix="", wrong=wrong.rstrip(), right=kernel.body, name=name.group(1)
        )
        yield f"from fusion_advisor.runtime.cpu_kernels import CpuKernel\nimport numba\n\n{text}\n"


@fault("wrong in the parallel twin only", "cpu", by_construction=True)
def parallel_only(kernel: Kernel) -> Iterator[str]:
    yield from _twins(kernel, "parallel")


@fault("wrong in the serial twin only", "cpu", by_construction=True)
def serial_only(kernel: Kernel) -> Iterator[str]:
    yield from _twins(kernel, "serial")


# --- what takes the process with it ---------------------------------------------------


@fault("raises", "cpu", by_construction=True)
def raises(kernel: Kernel) -> Iterator[str]:
    for store in kernel.stores[:1]:
        yield kernel.before(store, f"if {_place(kernel)} == 2:", "    raise ValueError(1)")


@fault("does not end", by_construction=True, limit_s=5.0)
def hangs(kernel: Kernel) -> Iterator[str]:
    array = kernel.stores[0].group(2)
    for store in kernel.stores[:1]:
        yield kernel.before(store, f"while {array}.size > 300:", f"    {array}[0] = "
                            f"{_zero(kernel, array)}")  # fmt: skip


@fault("writes to memory that is not its own", by_construction=True)
def wild(kernel: Kernel) -> Iterator[str]:
    for store in kernel.stores[:1]:
        array = store.group(2)
        if "," not in store.group(3):
            yield kernel.before(store, f"if {store.group(3)} == 1:", f"    {array}[1 << 40] = "
                                f"{_zero(kernel, array)}")  # fmt: skip


@fault("prints", "cpu", by_construction=True, limit_s=10.0)  # it may wait for the interpreter
def prints(kernel: Kernel) -> Iterator[str]:
    for store in kernel.stores[:1]:
        yield kernel.before(store, f"if {_place(kernel)} == 2:", "    print(2)")


@fault("takes far too much memory", "cpu", by_construction=True)
def hoards(kernel: Kernel) -> Iterator[str]:
    head, _, rest = kernel.body.partition(":\n")
    array = kernel.stores[0].group(2)
    for store in kernel.stores[:1]:
        place = store.group(3)
        lines = "    hoard = np.zeros((1 << 33) + 8)\n"
        body = f"{head}:\n{lines}{rest}"
        old, value = f"{array}[{place}] = {store.group(4)}", store.group(4)
        zero = _zero(kernel, array)
        yield body.replace(old, f"{array}[{place}] = {zero} if hoard[7] > 1.0 else {value}")
