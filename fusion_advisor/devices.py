"""What accelerators that are not here can do: one row per device, from public specifications.

Used for ``--device h100``.  A row is the maker's peak; a ``Ceilings`` record is what
plain kernels sustain, so peaks are scaled by the constants below.  A ceiling measured
on the device itself is always better than this table, and says so in its ``origin``.

Sources: the makers' data sheets and architecture white papers (NVIDIA V100, T4, A10,
A100, L4, L40S, H100, H200, HGX B200, GA102 and AD102 white papers; AMD MI210, MI250X,
MI300X data sheets), sizes and rates without sparsity, boost clock.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from fusion_advisor.errors import UsageError
from fusion_advisor.records import BandwidthPoint, Ceilings

MB = 1024 * 1024
SUSTAINED_FRACTION = 0.9  # of peak memory rate: a large device copy (H200: 4.3 of 4.8 TB/s)
L2_OVER_DRAM = 2.5  # where no measurement is published: the ratio XLA's GPU cost model assumes
DRAM_WORKING_SET_BYTES = 1 << 30  # far beyond every cache in the table
DISPATCH_US = 5.0  # host time of one small eager op on a current server CPU, launch included
NVIDIA_LAUNCH_US = 2.5  # device-side cost of one more kernel in a stream
AMD_LAUNCH_US = 4.0  # HIP launches are dearer than CUDA's
# Numba's launch path with torch tensors: its maintainers' issues report 50-90 us, mostly
# host-side typing of arguments, which runs ahead of a busy device.
FUSED_CALL_US = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """One row.  Rates are peaks; ``half``/``bfloat`` are dense matrix rates (0: none)."""

    key: str
    name: str
    dram_gb_per_s: float
    l2_mb: int
    float32_tflops: float
    float64_tflops: float
    half_tflops: float
    bfloat_tflops: float
    l2_gb_per_s: float = 0.0  # measured and published, else derived
    sustained: float = SUSTAINED_FRACTION
    launch_us: float = NVIDIA_LAUNCH_US
    aliases: tuple[str, ...] = ()


def _row(
    key: str, name: str, dram: float, l2_mb: int, tflops: tuple[float, float, float, float],
    *, aliases: tuple[str, ...] = (), l2: float = 0.0, sustained: float = SUSTAINED_FRACTION,
    launch: float = NVIDIA_LAUNCH_US,
) -> _Device:  # fmt: skip
    single, double, half, bfloat = tflops
    return _Device(
        key=key, name=name, dram_gb_per_s=dram, l2_mb=l2_mb, float32_tflops=single,
        float64_tflops=double, half_tflops=half, bfloat_tflops=bfloat, l2_gb_per_s=l2,
        sustained=sustained, launch_us=launch, aliases=aliases,
    )  # fmt: skip


# key, name, GB/s, L2 MB, TFLOP/s of (float32, float64, float16, bfloat16)
_DEVICES = (
    # L2 of V100 and T4: Jia et al., microbenchmarks of Volta (2018) and Turing (2019).
    _row("v100", "NVIDIA V100 SXM2", 900, 6, (15.7, 7.8, 125, 0), l2=2155),
    # Jia et al. measured 220 of T4's 320 GB/s.
    _row("t4", "NVIDIA T4", 320, 4, (8.1, 0.253, 65, 0), l2=1270, sustained=0.7),
    _row("a10", "NVIDIA A10", 600, 6, (31.2, 0.976, 125, 125), aliases=("a10g",)),
    _row("a100-40gb", "NVIDIA A100 40GB", 1555, 40, (19.5, 9.7, 312, 312)),
    _row("a100-80gb", "NVIDIA A100 80GB SXM", 2039, 40, (19.5, 9.7, 312, 312), aliases=("a100",)),
    _row("l4", "NVIDIA L4", 300, 48, (30.3, 0.473, 121, 121)),
    _row("l40s", "NVIDIA L40S", 864, 96, (91.6, 1.431, 362, 362)),
    _row("h100-sxm", "NVIDIA H100 SXM", 3350, 50, (66.9, 33.5, 989, 989), aliases=("h100",)),
    _row("h100-pcie", "NVIDIA H100 PCIe", 2039, 50, (51.2, 25.6, 756, 756)),
    _row("h200", "NVIDIA H200", 4800, 60, (66.9, 33.5, 989, 989)),
    _row("b200", "NVIDIA B200", 8000, 126, (75, 37, 2250, 2250)),
    _row("rtx3090", "NVIDIA GeForce RTX 3090", 936, 6, (35.6, 0.556, 71, 71), aliases=("3090",)),
    _row("rtx4090", "NVIDIA GeForce RTX 4090", 1008, 72, (82.6, 1.29, 165, 165), aliases=("4090",)),
    # AMD parts sustain less of their peak than NVIDIA's (published stream results, ~0.8).
    _row("mi210", "AMD Instinct MI210", 1638, 8, (22.6, 22.6, 181, 181),
         sustained=0.8, launch=AMD_LAUNCH_US),
    # One of the card's two dies: that is the device that torch sees.
    _row("mi250x", "AMD Instinct MI250X (one die)", 1638, 8, (23.9, 23.9, 191.5, 191.5),
         sustained=0.8, launch=AMD_LAUNCH_US, aliases=("mi250",)),
    # The 256 MB Infinity Cache is the level that holds a model's activations.
    _row("mi300x", "AMD Instinct MI300X", 5300, 256, (163.4, 81.7, 1307, 1307),
         sustained=0.8, launch=AMD_LAUNCH_US),
)  # fmt: skip


def _ceilings(device: _Device) -> Ceilings:
    dram = device.dram_gb_per_s * device.sustained
    cache = device.l2_gb_per_s or dram * L2_OVER_DRAM
    vector = device.float32_tflops
    return Ceilings(
        device=device.key,
        name=device.name,
        # Half of the cache: reads and writes of one step share it with what came before.
        bandwidth=(
            BandwidthPoint(working_set_bytes=device.l2_mb * MB // 2, gb_per_s=cache),
            BandwidthPoint(working_set_bytes=DRAM_WORKING_SET_BYTES, gb_per_s=dram),
        ),
        gflops=(
            ("bfloat16", (device.bfloat_tflops or vector) * 1000),
            ("float16", (device.half_tflops or vector) * 1000),
            ("float32", vector * 1000),
            ("float64", device.float64_tflops * 1000),
        ),
        dispatch_us=DISPATCH_US,
        launch_us=device.launch_us,
        call_us=FUSED_CALL_US,
        origin="table",
    )


_TABLE = tuple(_ceilings(device) for device in _DEVICES)
_BY_NAME = {
    name: ceilings
    for device, ceilings in zip(_DEVICES, _TABLE, strict=True)
    for name in (device.key, *device.aliases)
}
# What people and drivers write around a model's name.
_NOISE = re.compile(
    r"nvidia|amd|instinct|geforce|tesla|gpu|corporation|hbm\d?e?|sxm\d|\(tm\)|\(r\)"
)


def device_table() -> tuple[Ceilings, ...]:
    """All known devices.

    16-bit rates are those of the matrix units: elementwise ops compute in float32.
    """
    return _TABLE


def find_device(name: str) -> Ceilings:
    """The device called ``name``: ``h100``, ``RTX 4090``, ``NVIDIA A100-SXM4-80GB`` …

    Raises:
        UsageError: no such device in the table; the message lists those there are.
    """
    wanted = _normalise(name)
    for known, ceilings in _BY_NAME.items():
        if _normalise(known) == wanted:
            return ceilings
    # A driver's longer name: the longest known name that it starts with.
    starts = [known for known in _BY_NAME if wanted.startswith(_normalise(known))]
    if starts and _is_only_suffix(wanted, max(starts, key=len)):
        return _BY_NAME[max(starts, key=len)]
    close = difflib.get_close_matches(wanted, _BY_NAME, n=1, cutoff=0.6)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    known_names = ", ".join(sorted(_BY_NAME))
    raise UsageError(f"No device {name!r} in the table.{hint} Known: {known_names}.")


def _normalise(name: str) -> str:
    lowered = name.lower()
    if "h100" not in lowered:
        lowered = lowered.replace("pcie", "")
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub("", lowered.replace("sxm5", "sxm")))


def _is_only_suffix(wanted: str, known: str) -> bool:
    """Whether what follows the known name is a memory size (``80gb``), not another model."""
    return re.fullmatch(r"(pcie|sxm)?(\d+gb)?", wanted[len(_normalise(known)) :]) is not None
