"""Heads: every one scores by an inner product, s(u, i) = <user_u, item_i> + user_offset_u + item_bias_i.

So pair scores, lists, rankings, exports and vector search need one code path. A head says how an encoding becomes a
vector; the offset of a user changes no ranking, but is part of the score that the loss sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from concf.reference.kernels import log_partition
from concf.reference.rows import take_rows

Side = tuple[Tensor, Tensor]  # ([n, size] vectors, [n] offsets or biases)
Columns = tuple[Tensor, Tensor]  # ([c] places of a softmax, [c] what is added to the logit of each)


class Head(nn.Module, ABC):
    """What every head offers. encoding: [n, size] of the users or items at the positions `places` [n], None: of all.

    encodes_user, encodes_item: whether the head looks at such encodings at all
    """

    encodes_user = encodes_item = True

    @abstractmethod
    def user(self, encoding: Tensor, places: Tensor | None = None) -> Side:
        """User vectors and offsets."""

    @abstractmethod
    def item(self, encoding: Tensor, places: Tensor | None = None) -> Side:
        """Item vectors and biases."""


def _none(encoding: Tensor) -> Tensor:
    return encoding.new_zeros(len(encoding))


class DotHead(Head):
    """CF-A: <f(h_u), f(h_i)>, f linear."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.map = nn.Linear(size, size)

    def user(self, encoding: Tensor, places: Tensor | None = None) -> Side:  # noqa: ARG002
        """f(h_u)."""
        return self.map(encoding), _none(encoding)

    item = user


class MetricHead(Head):
    """CF-B: -|g(h_u) - g(h_i)|^2, g linear, then pulled into the unit ball.

    -|u - i|^2 = <2 u, i> - |u|^2 - |i|^2, which orders items as the distance does.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.map = nn.Linear(size, size)

    def _in_ball(self, encoding: Tensor) -> Tensor:
        mapped: Tensor = self.map(encoding)
        pulled: Tensor = mapped / mapped.norm(dim=1, keepdim=True).clamp(min=1.0)
        return pulled

    def user(self, encoding: Tensor, places: Tensor | None = None) -> Side:  # noqa: ARG002
        """2 g(h_u), -|g(h_u)|^2."""
        vector = self._in_ball(encoding)
        return 2 * vector, -vector.square().sum(1)

    def item(self, encoding: Tensor, places: Tensor | None = None) -> Side:  # noqa: ARG002
        """g(h_i), -|g(h_i)|^2."""
        vector = self._in_ball(encoding)
        return vector, -vector.square().sum(1)


class ProductHead(Head):
    """CF-C and CF-D: w . (h_u * h_i) + b, with w folded into the user's side."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.map = nn.Linear(size, 1)

    def user(self, encoding: Tensor, places: Tensor | None = None) -> Side:  # noqa: ARG002
        """w * h_u, b."""
        return encoding * self.map.weight, self.map.bias.expand(len(encoding))

    def item(self, encoding: Tensor, places: Tensor | None = None) -> Side:  # noqa: ARG002
        """h_i."""
        return encoding, _none(encoding)


class TableHead(Head):
    """A head with an output table of its own, [n, size] and [n], and a softmax over it."""

    def __init__(self, size: int, n: int) -> None:
        super().__init__()
        self.table = nn.Linear(size, n)

    def _at(self, places: Tensor | None) -> Side:
        if places is None:
            return self.table.weight, self.table.bias
        return take_rows(self.table.weight[None], places)[0], take_rows(self.table.bias[None, :, None], places)[0, :, 0]

    def partition(self, encoding: Tensor, columns: Columns | None = None) -> Tensor:
        """[b] the log-partition of each encoding [b, size], over the whole table or the columns that stand for it."""
        if columns is None:
            return log_partition(encoding, self.table.weight, self.table.bias)
        places, correction = columns
        vectors, bias = self._at(places)
        return log_partition(encoding, vectors, bias + correction)


class ItemTableHead(TableHead):
    """CF-E, row-wise: <h_u, V_i> + b_i with its own table of items; a softmax over all items."""

    encodes_item = False

    def user(self, encoding: Tensor, places: Tensor | None = None) -> Side:  # noqa: ARG002
        """h_u."""
        return encoding, _none(encoding)

    def item(self, encoding: Tensor, places: Tensor | None = None) -> Side:  # noqa: ARG002
        """V_i, b_i."""
        return self._at(places)


class UserTableHead(TableHead):
    """CF-E', column-wise: <h_i, V'_u> + b'_u with its own table of users; a softmax over all users.

    Items are ranked by log p(u | i), so the item's log-partition is part of its score: its bias is minus that.
    """

    encodes_user = False

    def user(self, encoding: Tensor, places: Tensor | None = None) -> Side:  # noqa: ARG002
        """V'_u, b'_u."""
        return self._at(places)

    def item(self, encoding: Tensor, places: Tensor | None = None) -> Side:  # noqa: ARG002
        """h_i, minus its log-partition."""
        return encoding, -self.partition(encoding)
