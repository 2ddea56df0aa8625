"""Example users as HTML: chips of what they used, the consensus with its votes, the lists of the heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from concf.consensus.settings import CONSENSUS
from concf.report.examples import PLACES, SHOWN
from concf.report.markup import Safe, joined, tag
from concf.report.tables import scrolling


def shown_examples(found: Mapping[str, Any]) -> Safe | None:
    """All of them, or nothing."""
    examples = found["examples"]
    if not examples:
        return None
    words = tag(
        "p", "Users spaced evenly from the most to the least active. What they used in training or validation is not "
        "shown again. ", tag("mark", "item ✓"), " stands for one that the user has in the test part.", class_="soft",
    )  # fmt: skip
    return joined(words, *(_user(each, place) for place, each in enumerate(examples)))


def item(told: Mapping[str, Any]) -> Safe:
    """An item by its title, with its id behind, or by its id alone; whichever way it is written."""
    identity = tag("bdi", told["item"])
    if told.get("title") is None:
        return identity
    return joined(tag("bdi", told["title"], class_="title"), tag("bdi", told["item"], class_="id"))


def _user(told: Mapping[str, Any], place: int) -> Safe:
    key = f"user-{place + 1}"
    head = tag("h3", "User ", tag("bdi", told["user"]), id=key)
    many = told["used"] > len(told["history"])
    used = f"Used in training, {_count(told['used'])}" + (f", {SHOWN} of them:" if many else ":")
    held_out = f"Held out to test, {_count(len(told['held_out']))}, with the place in the list by {told['by']}:"
    votes = told["votes"]
    consensus = _votes(told["lists"][CONSENSUS], votes, place) if votes else None
    lists = {name: each for name, each in told["lists"].items() if name != CONSENSUS or not votes}
    return tag(
        "article", head, tag("p", used, class_="soft"), _chips(told["history"]),
        tag("p", held_out, class_="soft"),
        _chips(told["held_out"]), consensus, _lists(lists, place), class_="user", aria_labelledby=key,
    )  # fmt: skip


def _count(items: int) -> str:
    return f"{items:,} item{'' if items == 1 else 's'}"


def _chips(items: Sequence[Mapping[str, Any]]) -> Safe:
    chips = []
    for told in items[:SHOWN]:
        rank = told.get("rank")
        chips.append(tag("li", item(told), f" · {rank}" if rank else None, class_="hit" if rank else None))
    more = [tag("li", f"and {len(items) - SHOWN:,} more")] if len(items) > SHOWN else []
    return tag("ul", *chips, *more, class_="chips")


def _votes(listed: Sequence[Mapping[str, Any]], votes: Sequence[Mapping[str, Any]], place: int) -> Safe:
    """The consensus: of each item, where every voting head has it and how consistently."""
    heads = [each["head"] for each in votes[0]["heads"]]
    top = max(vote["vote"] for each in votes for vote in each["heads"]) or 1.0
    order = "importance" if votes[0]["reranked"] is None else "reranked"  # what the list is ordered by
    head = tag("tr", *(tag("th", name, scope="col") for name in ("", "consensus", order, *heads)))
    rows = [
        tag("tr", tag("td", number + 1), _cell(told), tag("td", f"{vote[order]:.3f}"),
            *(_vote(each, top) for each in vote["heads"]))
        for number, (told, vote) in enumerate(zip(listed, votes, strict=True))
    ]  # fmt: skip
    named = tag("caption", "Consensus, with each head's rank and consistency C; – for no vote")
    return scrolling(
        tag("table", named, tag("thead", head), tag("tbody", *rows), class_="lists"), f"Votes, user {place + 1}"
    )


def _vote(told: Mapping[str, Any], top: float) -> Safe:
    """A rank and a consistency; the line below is as long as the vote is great."""
    if not told["vote"]:
        return tag("td", "–")
    rank = joined(told["rank"], tag("small", f"C {told['C']:.2f}"))
    return tag("td", rank, class_="vote", style=f"--w:{told['vote'] / top:.0%}")


def _cell(told: Mapping[str, Any]) -> Safe:
    return tag("td", tag("mark", item(told), " ✓") if told["hit"] else item(told))


def _lists(lists: Mapping[str, Sequence[Mapping[str, Any]]], place: int) -> Safe:
    """The lists side by side."""
    head = tag("tr", tag("th", ""), *(tag("th", name, scope="col") for name in lists))
    length = min(PLACES, max(map(len, lists.values())))
    rows = [
        tag("tr", tag("td", number + 1),
            *(_cell(each[number]) if number < len(each) else tag("td") for each in lists.values()))
        for number in range(length)
    ]  # fmt: skip
    named = tag("caption", "Lists, each at its own best epoch")
    return scrolling(
        tag("table", named, tag("thead", head), tag("tbody", *rows), class_="lists"), f"Lists, user {place + 1}"
    )
