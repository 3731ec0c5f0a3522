"""What is promised about speed: contests, and the ratio that each may reach at most."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.speed.contest import Competition, Entry, compete
from benchmarks.speed.ours import Shape

PEAK = "matrix product"
OURS, PEERS = "benchmarks.speed.ours", "benchmarks.speed.peers"
MIXED, TORCH = "standard, mixed", ("torch", "torch.compile")


@dataclass(frozen=True)
class Claim:
    """One contestant's time over another's, or over the fastest of several, and its bound."""

    name: str
    against: tuple[str, ...]
    at_most: float | None = None
    work: float = 1.0
    """How much more one call of it does than one call of the others."""


@dataclass(frozen=True)
class Contest:
    """Contestants that take turns, and what is claimed about them."""

    key: str
    title: str
    entries: dict[str, Entry]
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Finding:
    """A claim that was measured."""

    name: str
    against: str
    ratio: float
    quartiles: tuple[float, float]
    at_most: float | None
    milliseconds: float
    share_of_peak: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None where there is none."""
        return None if self.at_most is None else self.ratio <= self.at_most


@dataclass(frozen=True)
class Outcome:
    """What a contest showed."""

    contest: Contest
    competition: Competition
    findings: tuple[Finding, ...]

    @property
    def peak(self) -> float | None:
        """Operations a second of the matrix product, where it took part."""
        return _peak(self.competition)


def _step(name: str, shape: Shape, seeds: int = 1, dtype: str = "float32") -> Entry:
    return Entry(f"{OURS}:training_step", (name, shape, seeds, dtype))


def _gradients(name: str, shape: Shape) -> Entry:
    return Entry(f"{OURS}:gradients", (name, shape))


def _product() -> Entry:
    return Entry(f"{OURS}:matrix_product", (2048,))


def peers_are_installed() -> bool:
    """Whether torch and transformers can be imported."""
    return find_spec("torch") is not None and find_spec("transformers") is not None


def contests() -> list[Contest]:
    """All of them; without torch and transformers, those of our models among themselves."""
    small, large = Shape(256, 4, 6, 128, 8), Shape(512, 8, 8, 256, 8)
    many, long = Shape(256, 4, 6, 128, 64), Shape(256, 4, 6, 2048, 1)
    return [
        _training("step-small", "Training step, width 256, 6 layers, 8 x 128 tokens", small),
        _training("step-large", "Training step, width 512, 8 layers, 8 x 256 tokens", large),
        _generated("tong-small", "Generated weights, 1024 tokens a batch", small, 1.4),
        _generated("tong-many", "Generated weights, 8192 tokens a batch", many, 1.2),
        _state_space("ssm-short", "State-space part, 8 x 128 tokens", small, 1.3),
        _state_space("ssm-long", "State-space part, 1 x 2048 tokens", long, 1.1),
        _scans(),
        _generation("generate-1", "Generation, 512 new tokens, batch 1", 1),
        _generation("generate-16", "Generation, 512 new tokens, batch 16", 16),
        _flat(),
        _seeds(),
    ]


def _training(key: str, title: str, shape: Shape) -> Contest:
    names = ("standard", "shared", "time_indexed_mlp")
    entries = {name: _step(name, shape) for name in names} | {PEAK: _product()}
    entries[MIXED] = _step("standard", shape, dtype="mixed")
    claims = [
        Claim("time_indexed_mlp", ("standard",), 1.05),
        Claim("shared", ("standard",), 1.0),
        Claim(MIXED, ("standard",)),
    ]
    if peers_are_installed():
        exact, rounded = TORCH, tuple(f"{name}, bfloat16" for name in TORCH)
        for name in (*exact, *rounded):
            compiled = name.startswith(TORCH[1])
            arguments = (shape, compiled, name in rounded)
            entries[name] = Entry(f"{PEERS}:torch_training_step", arguments, optional=compiled)
        claims.insert(0, Claim("standard", exact, 1.0))
        claims.insert(1, Claim(MIXED, (*exact, *rounded), 1.0))
    return Contest(key, title, entries, tuple(claims))


def _generated(key: str, title: str, shape: Shape, at_most: float) -> Contest:
    entries = {
        name: make(name.split()[0], shape)
        for make, suffix in ((_step, ""), (_gradients, " gradients"))
        for name in (f"standard{suffix}", f"tong_neuralode{suffix}")
    }
    claims = (
        Claim("tong_neuralode", ("standard",), at_most),
        Claim("tong_neuralode gradients", ("standard gradients",)),
        Claim("tong_neuralode gradients", ("tong_neuralode",)),
    )
    return Contest(key, title, entries, claims)


def _state_space(key: str, title: str, shape: Shape, at_most: float) -> Contest:
    names = ("time_indexed_mlp", "time_indexed_ssm")
    claim = Claim("time_indexed_ssm", ("time_indexed_mlp",), at_most)
    return Contest(key, title, {name: _step(name, shape) for name in names}, (claim,))


def _scans() -> Contest:
    sizes = (16, 32, 64, 128, 256)
    entries = {"loop": Entry(f"{OURS}:state_space_scan", ("loop", 0, 1, 1024, 8))}
    for size in sizes:
        arguments = ("chunks", size, 1, 1024, 8)
        entries[f"chunks of {size}"] = Entry(f"{OURS}:state_space_scan", arguments)
    claims = [Claim(f"chunks of {size}", ("loop",), 1 / 3 if size == 128 else None) for size in sizes]
    return Contest("scan", "Scan of 1024 positions, forward and backward", entries, tuple(claims))


def _generation(key: str, title: str, batch: int) -> Contest:
    shape = Shape(256, 4, 6, 16, batch)
    names = ("standard", "time_indexed_mlp", "time_indexed_ssm")
    entries = {name: Entry(f"{OURS}:generation", (name, shape, 512)) for name in names}
    claims = [Claim(name, ("standard",)) for name in names[1:]]
    if peers_are_installed():
        entries["transformers"] = Entry(f"{PEERS}:transformers_generation", (shape, 512))
        claims.insert(0, Claim("standard", ("transformers",), 1.0))
    return Contest(key, title, entries, tuple(claims))


def _flat() -> Contest:
    shape = Shape(256, 4, 6, 1, 1)
    entries = {
        name: Entry(f"{OURS}:continuation", (("ssm",), shape, offset, 4096))
        for name, offset in (("first 64 tokens", 0), ("last 64 tokens", 4032))
    }
    claim = Claim("last 64 tokens", ("first 64 tokens",), 1.05)
    return Contest(
        "flat", "State-space generation, at the start and the end of 4096", entries, (claim,)
    )


def _seeds() -> Contest:
    shape = Shape(128, 4, 4, 128, 16)
    entries = {"one seed": _step("standard", shape), "4 seeds": _step("standard", shape, 4)}
    claim = Claim("4 seeds", ("one seed",), 1.0, work=4)
    return Contest("seeds", "Several seeds as one program, width 128, 16 x 128", entries, (claim,))


def measure(contest: Contest, rounds: int, advance: Callable[[], None]) -> Outcome:
    """Hold a contest."""
    competition = compete(contest.entries, rounds, advance)
    findings = tuple(find(claim, competition) for claim in contest.claims)
    return Outcome(contest, competition, findings)


def _peak(competition: Competition) -> float | None:
    if PEAK not in competition.times:
        return None
    return competition.facts[PEAK]["flops"] / competition.times[PEAK].median


def find(claim: Claim, competition: Competition) -> Finding:
    """What a competition says about a claim."""
    times, peak = competition.times, _peak(competition)
    present = [name for name in claim.against if name in times]
    fastest = min(present, key=lambda name: times[name].median)
    ratio, low, high = (r / claim.work for r in times[claim.name].ratio_to(times[fastest]))
    flops = competition.facts[claim.name].get("flops")
    share = flops / times[claim.name].median / peak if flops and peak else None
    return Finding(
        name=claim.name,
        against=fastest,
        ratio=ratio,
        quartiles=(low, high),
        at_most=claim.at_most,
        milliseconds=1e3 * times[claim.name].median,
        share_of_peak=share,
    )
