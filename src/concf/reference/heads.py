"""Heads: each scores by an inner product, s(u, i) = <user_u, item_i> + user_offset_u + item_bias_i.

Pair scores, lists, rankings, exports and vector search thus share one code path. A head maps encodings to vectors; the
offset of a user changes no ranking, but is part of the score in the loss. A head is made from (size of an encoding,
number of users, number of items).
"""

from __future__ import annotations

from torch import Tensor, nn

from concf.reference.kernels import log_partition, take_rows

Side = tuple[Tensor, Tensor]  # ([n, size] vectors, [n] offsets or biases)


class Head(nn.Module):
    """Head that scores by the encodings themselves; base of the others, which replace one side or both.

    encoding: [n, size] of the users or items `ids` [n]; None: of all
    encodes_user, encodes_item: whether the head uses the encodings of users, and of items
    """

    encodes_user = encodes_item = True

    def user(self, encoding: Tensor, ids: Tensor | None = None) -> Side:  # noqa: ARG002
        """User vectors and offsets: h_u, 0."""
        return encoding, encoding.new_zeros(len(encoding))

    def item(self, encoding: Tensor, ids: Tensor | None = None) -> Side:  # noqa: ARG002
        """Item vectors and biases: h_i, 0."""
        return encoding, encoding.new_zeros(len(encoding))


class DotHead(Head):
    """CF-A: <f(h_u), f(h_i)>, f linear."""

    def __init__(self, size: int, *_: int) -> None:
        super().__init__()
        self.map = nn.Linear(size, size)

    def user(self, encoding: Tensor, ids: Tensor | None = None) -> Side:  # noqa: ARG002
        """f(h_u)."""
        return self.map(encoding), encoding.new_zeros(len(encoding))

    item = user


class MetricHead(Head):
    """CF-B: -|g(h_u) - g(h_i)|^2, g linear, then pulled into the unit ball.

    -|u - i|^2 = <2 u, i> - |u|^2 - |i|^2, which orders items as the distance does.
    """

    def __init__(self, size: int, *_: int) -> None:
        super().__init__()
        self.map = nn.Linear(size, size)

    def _in_ball(self, encoding: Tensor) -> Tensor:
        mapped: Tensor = self.map(encoding)
        pulled: Tensor = mapped / mapped.norm(dim=1, keepdim=True).clamp(min=1.0)
        return pulled

    def user(self, encoding: Tensor, ids: Tensor | None = None) -> Side:  # noqa: ARG002
        """2 g(h_u), -|g(h_u)|^2."""
        vector = self._in_ball(encoding)
        return 2 * vector, -vector.square().sum(1)

    def item(self, encoding: Tensor, ids: Tensor | None = None) -> Side:  # noqa: ARG002
        """g(h_i), -|g(h_i)|^2."""
        vector = self._in_ball(encoding)
        return vector, -vector.square().sum(1)


class ProductHead(Head):
    """CF-C and CF-D: w . (h_u * h_i) + b, with w folded into the user's side."""

    def __init__(self, size: int, *_: int) -> None:
        super().__init__()
        self.map = nn.Linear(size, 1)

    def user(self, encoding: Tensor, ids: Tensor | None = None) -> Side:  # noqa: ARG002
        """w * h_u, b."""
        return encoding * self.map.weight, self.map.bias.expand(len(encoding))


class TableHead(Head):
    """Base of the heads with an output table of one side, weights [n, size] and biases [n], and a softmax over it."""

    def __init__(self, size: int, users: int, items: int) -> None:
        super().__init__()
        self.table = nn.Linear(size, items if self.encodes_user else users)

    def _rows(self, ids: Tensor | None) -> Side:
        if ids is None:
            return self.table.weight, self.table.bias
        return take_rows(self.table.weight[None], ids)[0], take_rows(self.table.bias[None, :, None], ids)[0, :, 0]

    def partition(self, encoding: Tensor) -> Tensor:
        """[b] log-partition of each encoding [b, size]."""
        return log_partition(encoding, self.table.weight, self.table.bias)


class ItemTableHead(TableHead):
    """CF-E, row-wise: <h_u, V_i> + b_i with an output table of items; a softmax over all items."""

    encodes_item = False

    def item(self, encoding: Tensor, ids: Tensor | None = None) -> Side:  # noqa: ARG002
        """V_i, b_i."""
        return self._rows(ids)


class UserTableHead(TableHead):
    """CF-E', column-wise: <h_i, V'_u> + b'_u with an output table of users; a softmax over all users.

    Items are ranked by log p(u | i), so the item's log-partition is part of its score: its bias is minus that.
    """

    encodes_user = False

    def user(self, encoding: Tensor, ids: Tensor | None = None) -> Side:  # noqa: ARG002
        """V'_u, b'_u."""
        return self._rows(ids)

    def item(self, encoding: Tensor, ids: Tensor | None = None) -> Side:  # noqa: ARG002
        """h_i, minus its log-partition."""
        return encoding, -self.partition(encoding)
