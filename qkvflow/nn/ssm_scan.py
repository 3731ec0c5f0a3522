"""The selective state-space recurrence, by routes that agree.

For each batch row and head, with P channels x_t, a step size delta_t > 0, a rate A < 0 and
vectors B_t, C_t of N states (Gu & Dao 2023; Dao & Gu 2024, where A is one number a head):

    h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t^T        h in R^{P x N}
    y_t = h_t C_t

Axes of plain arrays: b batch, t position, h head, p channel, n state; g chunk of a batch row, i and j
positions of one chunk. A state is kept as [b,n,h,p]. `scan_by_loop` is the definition,
`scan_by_chunks` the same as matrix products, `scan_step` one position of it, `scan_keeping_states` the
definition that keeps every state.

Where documents are numbered, the first position of one begins with a zero state and no past.

silu, alone and as a gate, is written so that its value and its gradient end in a division. XLA's CPU
backend merges loops and repeats in each of them what it takes for cheap, here whole convolutions, but
it does not repeat a division: the results of these functions are stored.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

# A step that multiplies the old state by exp(-20) = 2e-9 has forgotten it in float32. Flooring the
# exponent there keeps sums of it small, so that their differences inside a chunk stay accurate.
FORGOTTEN = -20.0
WRITTEN_OUT = 8
"""Positions of a loop that are written out, where there are few of them."""


def scan_step(
    state: Array, x: Array, delta: Array, A: Array, B: Array, C: Array
) -> tuple[Array, Array]:
    """One position: state [b,n,h,p], x [b,h,p], delta [b,h], A [h], B and C [b,n] -> y, state."""
    decay = jnp.exp(delta * A[None, :])
    new = (delta[..., None] * x)[:, None] * B[:, :, None, None]
    state = decay[:, None, :, None] * state + new
    return jnp.einsum("bnhp,bn->bhp", state, C), state


def scan_by_loop(
    x: Array, delta: Array, A: Array, B: Array, C: Array, state: Array
) -> tuple[Array, Array]:
    """The definition: x [b,t,h,p], delta [b,t,h], A [h], B and C [b,t,n], state [b,n,h,p].

    Returns y [b,t,h,p] and the state after the last position.
    """

    def step(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        x, delta, B, C = inputs
        y, state = scan_step(state, x, delta, A, B, C)
        return state, y

    by_position = tuple(jnp.moveaxis(a, 1, 0) for a in (x, delta, B, C))
    state, y = lax.scan(step, state, by_position)
    return jnp.moveaxis(y, 0, 1), state


def scan_keeping_states(
    x: Array, delta: Array, A: Array, B: Array, C: Array, state: Array
) -> tuple[Array, Array]:
    """`scan_by_loop` that returns the states after all positions, [t,b,n,h,p]; for a few positions."""

    def step(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        x, delta, B, C = inputs
        y, state = scan_step(state, x, delta, A, B, C)
        return state, (y, state)

    by_position = tuple(jnp.moveaxis(a, 1, 0) for a in (x, delta, B, C))
    y, states = lax.scan(step, state, by_position, unroll=min(len(by_position[0]), WRITTEN_OUT))[1]
    return jnp.moveaxis(y, 0, 1), states


def scan_by_chunks(
    x: Array,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    state: Array,
    *,
    chunk_size: int,
    documents: Array | None = None,
) -> tuple[Array, Array]:
    """`scan_by_loop` as matrix products inside chunks and a short loop over chunks.

    Inside a chunk y = (C B^T * decay * delta) x with a lower-triangular matrix of decays; between
    chunks only the state is passed on. Positions that fill up the last chunk have delta = 0, which
    neither changes the state nor forgets it. With `documents` [b,t] a position receives only from those
    of its own, and a state is that of the document at the chunk's end.
    """
    batch, length, heads, channels = x.shape
    size = min(chunk_size, length)
    chunks = -(-length // size)

    def split(a: Array) -> Array:
        padding = [(0, 0), (0, chunks * size - length)] + [(0, 0)] * (a.ndim - 2)
        return jnp.pad(a, padding).reshape(batch * chunks, size, *a.shape[2:])

    x, delta, B, C = split(x), split(delta), split(B), split(C)
    log_decay = jnp.maximum(delta * A[None, None, :], FORGOTTEN)
    own = None if documents is None else _in_chunks(documents, size)
    since_start = _since_start(log_decay, own)
    until_end = since_start[:, -1:] - since_start
    left_at, left_until, kept = jnp.exp(since_start), jnp.exp(until_end), jnp.exp(since_start[:, -1])
    if documents is not None and own is not None:
        left_at, left_until, kept = _of_one_document(left_at, left_until, kept, documents, own)
    inside = _inside_chunks(x * delta[..., None], since_start, B, C, own)
    added = jnp.einsum("gjn,gjq->gnq", B, _rows(x * (delta * left_until)[..., None]))
    entering, last = _pass_on(
        state,
        added.reshape(batch, chunks, -1, heads, channels),
        kept.reshape(batch, chunks, heads),
    )
    entering = entering.reshape(batch * chunks, -1, heads * channels)
    carried = jnp.einsum("gin,gnq->giq", C, entering).reshape(x.shape)
    y = inside + carried * left_at[..., None]
    return y.reshape(batch, chunks * size, heads, channels)[:, :length], last


def _rows(a: Array) -> Array:
    """[g,i,h,p] with heads and channels as one axis."""
    return a.reshape(*a.shape[:2], -1)


def _in_chunks(documents: Array, size: int) -> Array:
    """Documents [b,t] as [g,i]; what fills up the last chunk is of the last document."""
    filling = [(0, 0), (0, -documents.shape[1] % size)]
    return jnp.pad(documents, filling, mode="edge").reshape(-1, size)


def _since_start(log_decay: Array, documents: Array | None) -> Array:
    """Log of what is left at i of the state that entered the chunk, or begins with i's document."""
    until_i = jnp.tril(jnp.ones(log_decay.shape[1:2] * 2))
    if documents is None:
        return jnp.einsum("ij,gjh->gih", until_i, log_decay, precision=lax.Precision.HIGHEST)
    of_own = jnp.where(documents[:, :, None] == documents[:, None], until_i[None], 0.0)
    return jnp.einsum("gij,gjh->gih", of_own, log_decay, precision=lax.Precision.HIGHEST)


def _of_one_document(
    left_at: Array, left_until: Array, kept: Array, documents: Array, own: Array
) -> tuple[Array, Array, Array]:
    """What is left of states, zero where they are of another document.

    Of the state that entered the chunk, at each position; of each position, at the chunk's end; and of
    the state that entered, there.
    """
    last = own[:, -1:]
    by_row = last.reshape(len(documents), -1)
    entering = jnp.concatenate([documents[:, :1], by_row[:, :-1]], axis=1).reshape(-1, 1)
    return (
        jnp.where((own == entering)[..., None], left_at, 0.0),
        jnp.where((own == last)[..., None], left_until, 0.0),
        jnp.where(last == entering, kept, 0.0),
    )


def _inside_chunks(
    weighted: Array, since_start: Array, B: Array, C: Array, documents: Array | None
) -> Array:
    """What positions of a chunk [g,i,h,p] receive from positions of the same chunk."""
    size = since_start.shape[1]
    past = jnp.tril(jnp.ones((size, size), bool))[None, None]
    if documents is not None:
        past &= (documents[:, :, None] == documents[:, None])[:, None]
    by_head = since_start.transpose(0, 2, 1)
    exponent = by_head[..., :, None] - by_head[..., None, :]
    # The future is masked before the exponential: it would overflow, and its gradient be NaN.
    decay = jnp.where(past, jnp.exp(jnp.where(past, exponent, 0.0)), 0.0)
    scores = jnp.einsum("gin,gjn->gij", C, B)[:, None]
    mixed = jnp.einsum("ghij,ghjp->ghip", scores * decay, weighted.transpose(0, 2, 1, 3))
    return mixed.transpose(0, 2, 1, 3)


def _pass_on(state: Array, added: Array, kept: Array) -> tuple[Array, Array]:
    """States [b,c,n,h,p] that enter the chunks c, and the state that leaves the last one."""

    def step(state: Array, chunk: tuple[Array, Array]) -> tuple[Array, Array]:
        added, kept = chunk
        return kept[:, None, :, None] * state + added, state

    last, entering = lax.scan(step, state, (jnp.moveaxis(added, 1, 0), jnp.moveaxis(kept, 1, 0)))
    return jnp.moveaxis(entering, 0, 1), last


def inverse_softplus(y: Array) -> Array:
    """x with softplus(x) = y, for y > 0."""
    return y + jnp.log(-jnp.expm1(-y))


def causal_conv(
    x: Array, kernel: Array, past: Array, documents: Array | None = None
) -> tuple[Array, Array]:
    """Depthwise causal convolution of x [b,t,channel] with kernel [width,channel].

    `past` [b,width-1,channel] are the inputs before x, which are of its first document. Returns the
    output and the inputs that the next call needs as its past.
    """
    width = kernel.shape[0]
    length = x.shape[1]
    padded = jnp.concatenate([past, x], axis=1)
    seen = [padded[:, k : k + length] for k in range(width)]
    if documents is not None:
        before = jnp.pad(documents, [(0, 0), (width - 1, 0)], mode="edge")
        of_own = [before[:, k : k + length] == documents for k in range(width)]
        seen = [jnp.where(own[..., None], tap, 0.0) for own, tap in zip(of_own, seen)]
    taps = (tap * _on_tokens(kernel[k], x) for k, tap in enumerate(seen))
    return sum(taps, jnp.zeros_like(x)), padded[:, length:]


def inputs_after(past: Array, x: Array, kept: int) -> Array:
    """What a next call needs as its past, after each of the last positions of x: [kept, ...]."""
    inputs, length = jnp.concatenate([past, x], axis=1), x.shape[1]
    counts = range(length - kept + 1, length + 1)
    return jnp.stack([inputs[:, n : n + past.shape[1]] for n in counts])


def _on_tokens(channels: Array, x: Array) -> Array:
    """A vector over channels for every token of x [b,t,channel]; its gradient sums over one axis."""
    tokens = x.shape[0] * x.shape[1]
    return jnp.broadcast_to(channels[None], (tokens, channels.size)).reshape(x.shape)


@jax.custom_jvp
def silu_gate(x: Array, z: Array) -> Array:
    """x silu(z) = x z / (1 + exp(-z))."""
    return (x * z) / (1.0 + jnp.exp(-z))


@silu_gate.defjvp
def _silu_gate_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (x, z), (dx, dz) = primals, tangents
    below = 1.0 + jnp.exp(-z)
    slope = 1.0 + z * (1.0 - 1.0 / below)
    return silu_gate(x, z), (dx / below) * z + (dz / below) * (x * slope)


@jax.custom_jvp
def silu(z: Array) -> Array:
    """z / (1 + exp(-z))."""
    return z / (1.0 + jnp.exp(-z))


@silu.defjvp
def _silu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (z,), (dz,) = primals, tangents
    below = 1.0 + jnp.exp(-z)
    return silu(z), (dz / below) * (1.0 + z * (1.0 - 1.0 / below))
