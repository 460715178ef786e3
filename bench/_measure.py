"""How the benchmarks measure: cases take turns within each block, and figures are ratios within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable

Case = Callable[[int], Awaitable[None]]
"""Does n operations."""


async def measure(cases: dict[str, Case], n: int, blocks: int) -> dict[str, list[float]]:
    """Return microseconds per operation for every case and block; the cases take turns within each block."""
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for name, case in cases.items():
        await case(max(1, n // 4))  # warm
        seen[name].clear()
    for block in range(blocks):
        names = list(cases)
        for name in names[block % len(names) :] + names[: block % len(names)]:
            start = time.perf_counter()
            await cases[name](n)
            seen[name].append((time.perf_counter() - start) / n * 1e6)
    return seen


def summary(seen: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {name: {**spread(blocks), "best": round(min(blocks), 1)} for name, blocks in seen.items()}


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 2), "lower": round(low, 2), "upper": round(high, 2)}


def ratio(over: list[float], under: list[float]) -> dict[str, float]:
    """Return the spread of the ratios of neighbouring blocks."""
    return spread([a / b for a, b in zip(over, under, strict=True)])
