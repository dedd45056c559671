"""What a run may send and spend: counted before a request goes out, so it is never passed.

Prices are the user's (`prices.toml` or a file of the same form): what one request to a model costs
at most. Money is counted in decimals.
"""

from __future__ import annotations

import dataclasses
import threading
import tomllib
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path

from trace_jax.errors import FaultsError, UserError

SHIPPED = Path(__file__).parent / "prices.toml"


class BudgetReached(Exception):  # noqa: N818 - an event of a run, no error of anybody's
    """The next request would pass the budget; the message says which."""


@dataclasses.dataclass(frozen=True)
class Prices:
    """A price table.

    Attributes:
      currency: e.g. "USD".
      request: model -> what one request costs at most.
    """

    currency: str
    request: Mapping[str, Decimal]

    def of(self, model: str) -> Decimal | None:
        """The price of one request, None where the table does not know the model."""
        return self.request.get(model)


def read_prices(path: str | Path | None = None) -> Prices:
    """Reads a price table; the shipped one by default.

    Raises:
      UserError: it cannot be read.
      FaultsError: entries that are no prices; all of them.
    """
    path = Path(path) if path else SHIPPED
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=str)
    except FileNotFoundError as error:
        raise UserError(f"--prices={path}: not found.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"--prices={path}: is not readable TOML ({error}).") from error
    faults = [f"unknown entry {name!r}" for name in raw if name not in ("currency", "request")]
    if not isinstance(raw.get("currency"), str):
        faults.append("'currency' must be text")
    table = raw.get("request")
    if not isinstance(table, dict):
        faults.append("[request] must hold model = price")
        table = {}
    prices: dict[str, Decimal] = {}
    for model, value in table.items():
        try:
            prices[model] = Decimal(str(value))
        except InvalidOperation:
            prices[model] = Decimal("NaN")
        if not prices[model].is_finite() or prices[model] < 0 or isinstance(value, bool):
            faults.append(f"{model}: {value!r} is no price")
    if faults:
        raise FaultsError(f"--prices={path}: cannot be used", faults, "Mend the file.")
    return Prices(raw["currency"], prices)


class Meter:
    """Counts requests and cost against the budget; safe to call from threads.

    Args:
      prices: the table.
      max_requests: None for no limit.
      max_cost: in the table's currency, None for no limit.
      requests, cost: what earlier runs of the folder sent and spent.
      record: told of every change before it takes effect: (requests, cost, model).
    """

    def __init__(
        self,
        prices: Prices,
        max_requests: int | None,
        max_cost: Decimal | None,
        *,
        requests: int = 0,
        cost: Decimal = Decimal(0),
        record: Callable[[int, Decimal, str], None] = lambda *_: None,
    ) -> None:
        self.prices, self.max_requests, self.max_cost = prices, max_requests, max_cost
        self.requests, self.cost = requests, cost
        self._record, self._lock = record, threading.Lock()

    def reserve(self, model: str) -> Decimal:
        """Takes one request out of the budget, before it is sent.

        Returns:
          What it may cost; hand it to `refund` where the service did not bill it.

        Raises:
          BudgetReached: it would pass a limit; nothing is counted.
        """
        price = self.prices.of(model) or Decimal(0)
        with self._lock:
            if self.max_requests is not None and self.requests + 1 > self.max_requests:
                raise BudgetReached(f"{self.requests} of {self.max_requests} requests are sent")
            if self.max_cost is not None and self.cost + price > self.max_cost:
                raise BudgetReached(
                    f"{self.cost} of {self.max_cost} {self.prices.currency} are spent and the next "
                    f"request may cost {price}"
                )
            self._record(1, price, model)
            self.requests, self.cost = self.requests + 1, self.cost + price
        return price

    def refund(self, model: str, price: Decimal) -> None:
        """Gives the cost of an unbilled request back; the request itself stays counted."""
        with self._lock:
            self._record(0, -price, model)
            self.cost -= price
