"""What the kill matrix reports at its end: a line for each square, and for programs one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from effectsvc.chaos.matrix import PLACES, VICTIMS, Played, Round, Square


class MatrixReport:
    """The judgement of a matrix that was played."""

    def __init__(self, played: Played, *, rounds: int) -> None:
        self.played, self.rounds = played, rounds
        self.squares = [Square(victim, place) for victim in VICTIMS for place in PLACES]

    @property
    def failed(self) -> list[Round]:
        return [each for each in self.played.rounds if not each.holds]

    @property
    def duplicates(self) -> int:
        return sum(each.rows > 1 for each in self.played.rounds)

    @property
    def holds(self) -> bool:
        is_whole = all(len(self._of(square)) == self.rounds for square in self.squares)
        return is_whole and not self.failed and not self.played.violations

    def _of(self, square: Square) -> list[Round]:
        return [each for each in self.played.rounds if each.square == square]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values. Times in seconds after the kill."""
        return {
            "holds": self.holds,
            "rounds": self.rounds,
            "duration_s": round(self.played.duration_s, 1),
            "duplicates": self.duplicates,
            "violations": [str(each) for each in self.played.violations],
            "failed": [_told(each) for each in self.failed],
            "squares": [self._square(square) for square in self.squares],
        }

    def _square(self, square: Square) -> dict[str, Any]:
        rounds = self._of(square)
        return {
            "victim": square.victim,
            "place": square.place,
            "rounds": len(rounds),
            "states": dict(Counter(each.state for each in rounds)),
            "most_rows": max((each.rows for each in rounds), default=0),
            "known_s": _spread([each.known_s for each in rounds if not each.failed]),
            "final_s": _spread([each.final_s for each in rounds if not each.failed]),
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{'killed':<11}{'at the place':<28}{'rounds':>6}{'rows':>5}  {'known, s':<21} final, s (min/median/max)"
        for square in self.squares:
            told = self._square(square)
            yield (
                f"{square.victim:<11}{square.place.replace('_', ' '):<28}{told['rounds']:>6}{told['most_rows']:>5}"
                f"  {_shown(told['known_s']):<21} {_shown(told['final_s'])}"
            )
        for each in self.failed:
            yield f"FAILED      {_told(each)}"
        for violation in self.played.violations:
            yield f"VIOLATED    {violation}"
        seconds = f"{self.played.duration_s:.0f} s"
        yield f"{len(self.played.rounds)} kills in {seconds}: {self.duplicates} above one provider effect"


def _told(each: Round) -> str:
    return f"{each.square}, order {each.order}: {each.state or 'nothing'}, {each.rows} rows; {each.failed or 'wrong'}"


def _spread(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    return {
        "min": round(min(seconds), 2),
        "median": round(median(seconds), 2),
        "max": round(max(seconds), 2),
    }


def _shown(spread: dict[str, float] | None) -> str:
    return "-" if spread is None else "/".join(f"{spread[name]:.2f}" for name in ("min", "median", "max"))
