"""Lines of Python by room beside their budget: `python tools/size.py`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = {  # of a room of src/concf
    "cli": 1_500, "service": 2_000, "report": 550, "comparison": 600, "inference": 2_300, "strong": 3_400,
    "reference": 2_600, "runs": 1_200, "consensus": 500, "baselines": 1_100, "evaluation": 750, "data": 3_200,
    "runtime": 900,
}  # fmt: skip
LIMITS = {"src": 22_000, "tests": 19_000}


def lines(folder: Path, pattern: str = "*.py") -> int:
    """Lines of all files below a folder."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in folder.rglob(pattern))


def main() -> None:
    """Print a row for each room, then the totals; * marks what is over its budget."""
    package = ROOT / "src" / "concf"
    rows = [(name, lines(package / name), most) for name, most in BUDGET.items()]
    rows += [(name, lines(ROOT / name), most) for name, most in LIMITS.items()]
    for name, found, most in rows:
        print(f"{name:>16} {found:>7,} of {most:>7,} {'*' if found > most else ''}".rstrip())
    for name in ("benchmarks", "tools", "examples"):
        print(f"{name:>16} {lines(ROOT / name):>7,}")
    print(f"{'docs':>16} {lines(ROOT / 'docs', '*.md'):>7,}")


if __name__ == "__main__":
    main()
