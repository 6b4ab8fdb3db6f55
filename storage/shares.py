"""How much of each record falls to which volume: by speed, within what each one can hold. Pure."""

from collections.abc import Sequence

_LONGEST_DEAL = 32
_GOOD_ENOUGH = 0.02  # a volume's part may differ by so much of what it should be


def shares_of(
    rates: Sequence[float | None], capacities: Sequence[int], total_bytes: int
) -> list[float]:
    """The part of `total_bytes` that each volume takes; the parts sum to 1.

    In proportion to `rates` (bytes a second), equal where one of them is unknown. A volume whose
    part would not fit in its capacity (bytes) is filled, and the others take more. When all
    together cannot hold it, capacity is left out of account.
    """
    known = [rate for rate in rates if rate is not None and rate > 0]
    weights = known if len(known) == len(rates) else [1.0] * len(rates)
    shares = [weight / sum(weights) for weight in weights]
    if sum(capacities) <= total_bytes or total_bytes <= 0:
        return shares
    full: dict[int, float] = {}
    while True:
        left = 1 - sum(full.values())
        open_weight = sum(w for i, w in enumerate(weights) if i not in full)
        shares = [full.get(i, left * w / (open_weight or 1)) for i, w in enumerate(weights)]
        over = [i for i in range(len(weights)) if shares[i] * total_bytes > capacities[i]]
        over = [i for i in over if i not in full]
        if not over:
            return shares
        full |= {i: max(0, capacities[i]) / total_bytes for i in over}


def deal_of(shares: Sequence[float]) -> tuple[int, ...]:
    """The shortest repeating order of volumes that deals stripes in these parts, well mixed.

    The order is that of a smooth weighted round robin: no volume waits long for its turn.
    """
    best: tuple[float, tuple[int, ...]] | None = None
    for length in range(sum(share > 0 for share in shares), _LONGEST_DEAL + 1):
        counts = _rounded(shares, length)
        error = max(
            abs(count / length - share) / share
            for count, share in zip(counts, shares, strict=True)
            if share > 0
        )
        if best is None or error < best[0]:
            best = (error, counts)
        if error <= _GOOD_ENOUGH:
            break
    assert best is not None  # one volume at least has a share
    return _mixed(best[1])


def _rounded(shares: Sequence[float], length: int) -> tuple[int, ...]:
    """Whole numbers that sum to `length`, by largest remainder."""
    exact = [share * length for share in shares]
    counts = [int(one) for one in exact]
    by_rest = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_rest[: length - sum(counts)]:
        counts[i] += 1
    return tuple(counts)


def _mixed(counts: Sequence[int]) -> tuple[int, ...]:
    order = []
    credit = [0] * len(counts)
    for _ in range(sum(counts)):
        credit = [have + count for have, count in zip(credit, counts, strict=True)]
        chosen = max(range(len(counts)), key=lambda i: (credit[i], -i))
        credit[chosen] -= sum(counts)
        order.append(chosen)
    return tuple(order)
