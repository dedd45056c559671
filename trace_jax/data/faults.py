"""One fault of a data folder: a line to print that also knows its kind and its place."""

from __future__ import annotations


class Fault(str):
    """What is wrong, as a line for the user.

    It is a `str`, so it joins and prints like one; `named` puts the kind in front.

    Attributes:
      name: the kind of fault, short and stable ("unknown-type"); scripts may rely on it.
      line: line of `manifest.jsonl`, or 0 where it belongs to no line.
    """

    name: str
    line: int

    def __new__(cls, name: str, text: str, line: int = 0) -> Fault:
        """A fault of kind `name`."""
        self = super().__new__(cls, text)
        self.name = name
        self.line = line
        return self

    def at(self, file: str, line: int = 0) -> Fault:
        """The same fault with its place in front."""
        where = f"{file}:{line}" if line else file
        return Fault(self.name, f"{where}: {self}", line)

    @property
    def named(self) -> str:
        """The line with the kind in front, as `bin/data check` prints it."""
        return f"{self.name}: {self}"
