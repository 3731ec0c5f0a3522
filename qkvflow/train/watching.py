"""How far a run is, for whoever called it from Python and watches."""

from contextlib import ExitStack

from qkvflow.config import RunConfig
from qkvflow.progress import Draw, drawing, is_watched
from qkvflow.train.metrics import Record, Sink


class Bar(Sink):
    """A bar with the losses in a notebook or on a terminal; where nobody watches, nothing."""

    def __init__(self, run: RunConfig, title: str = ""):
        self._run, self._stack = run, ExitStack()
        self._title = title or run.model
        self._valid = ""
        self._draw: Draw | None = None

    def write(self, record: Record) -> None:
        if not is_watched():
            return
        if self._draw is None:
            self._draw = drawing(self._title, self._run.steps, self._stack)
            self._draw(record["step"], "compiling")
        if record["kind"] in ("valid", "final") and record["loss"] is not None:
            self._valid = f"  valid {record['loss']:.3f}"
        elif record["kind"] == "note":
            print(record["text"])

    def tick(self, step: int, loss: float) -> None:
        if self._draw is not None:
            self._draw(step, f"loss {loss:.3f}{self._valid}")

    def close(self) -> None:
        self._stack.close()
