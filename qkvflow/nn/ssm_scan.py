"""The selective state-space recurrence, by three routes that agree.

For each batch row and head, with P channels x_t, a step size delta_t > 0, a rate A < 0 and
vectors B_t, C_t of N states (Gu & Dao 2023; Dao & Gu 2024, where A is one number a head):

    h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t^T        h in R^{P x N}
    y_t = h_t C_t

Axes of plain arrays: b batch, t position, h head, p channel, n state; c chunk, i and j positions
of one chunk. `scan_by_loop` is the definition, `scan_by_chunks` the same as matrix products,
`scan_step` one position of it.
"""

import jax.numpy as jnp
from jax import Array, lax

# A step that multiplies the old state by exp(-20) = 2e-9 has forgotten it in float32. Flooring the
# exponent there keeps sums of it small, so that their differences inside a chunk stay accurate.
FORGOTTEN = -20.0


def scan_step(
    state: Array, x: Array, delta: Array, A: Array, B: Array, C: Array
) -> tuple[Array, Array]:
    """One position: state [b,h,p,n], x [b,h,p], delta [b,h], A [h], B and C [b,n] -> y, state."""
    decay = jnp.exp(delta * A[None, :])
    new = (delta[..., None] * x)[..., None] * B[:, None, None, :]
    state = decay[..., None, None] * state + new
    return jnp.einsum("bhpn,bn->bhp", state, C), state


def scan_by_loop(
    x: Array, delta: Array, A: Array, B: Array, C: Array, state: Array
) -> tuple[Array, Array]:
    """The definition: x [b,t,h,p], delta [b,t,h], A [h], B and C [b,t,n], state [b,h,p,n].

    Returns y [b,t,h,p] and the state after the last position.
    """

    def step(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        x, delta, B, C = inputs
        y, state = scan_step(state, x, delta, A, B, C)
        return state, y

    by_position = tuple(jnp.moveaxis(a, 1, 0) for a in (x, delta, B, C))
    state, y = lax.scan(step, state, by_position)
    return jnp.moveaxis(y, 0, 1), state


def scan_by_chunks(
    x: Array, delta: Array, A: Array, B: Array, C: Array, state: Array, *, chunk_size: int
) -> tuple[Array, Array]:
    """`scan_by_loop` as matrix products inside chunks and a short loop over chunks.

    Inside a chunk y = (C B^T * decay * delta) x with a lower-triangular matrix of decays; between
    chunks only the state is passed on. Positions that fill up the last chunk have delta = 0, which
    neither changes the state nor forgets it.
    """
    length = x.shape[1]
    size = min(chunk_size, length)
    chunks = -(-length // size)

    def split(a: Array) -> Array:
        padding = [(0, 0), (0, chunks * size - length)] + [(0, 0)] * (a.ndim - 2)
        return jnp.pad(a, padding).reshape(a.shape[0], chunks, size, *a.shape[2:])

    x, delta, B, C = split(x), split(delta), split(B), split(C)
    # decay_from[b,c,h,i]: log of what is left at i of the state that entered the chunk.
    log_decay = jnp.maximum(delta * A[None, None, None, :], FORGOTTEN).transpose(0, 1, 3, 2)
    decay_from = jnp.cumsum(log_decay, axis=-1)
    weighted = (x * delta[..., None]).transpose(0, 1, 3, 2, 4)
    inside = _inside_chunks(weighted, decay_from, B, C)
    added = _chunk_states(weighted, decay_from, B)
    entering, last = _pass_on(state, added, jnp.exp(decay_from[..., -1]))
    carried = jnp.einsum("bcin,bchpn->bchip", C, entering) * jnp.exp(decay_from)[..., None]
    y = (inside + carried).transpose(0, 1, 3, 2, 4)
    return y.reshape(y.shape[0], chunks * size, *y.shape[3:])[:, :length], last


def _inside_chunks(weighted: Array, decay_from: Array, B: Array, C: Array) -> Array:
    """What positions of a chunk [b,c,h,i,p] receive from positions of the same chunk."""
    size = decay_from.shape[-1]
    past = jnp.tril(jnp.ones((size, size), bool))[None, None, None]
    exponent = decay_from[..., :, None] - decay_from[..., None, :]
    # The future is masked before the exponential: it would overflow, and its gradient be NaN.
    decay = jnp.where(past, jnp.exp(jnp.where(past, exponent, 0.0)), 0.0)
    scores = jnp.einsum("bcin,bcjn->bcij", C, B)[:, :, None]
    return jnp.einsum("bchij,bchjp->bchip", scores * decay, weighted)


def _chunk_states(weighted: Array, decay_from: Array, B: Array) -> Array:
    """The state [b,c,h,p,n] that each chunk adds by its end."""
    until_end = jnp.exp(decay_from[..., -1:] - decay_from)
    return jnp.einsum("bchjp,bcjn->bchpn", weighted * until_end[..., None], B)


def _pass_on(state: Array, added: Array, decay: Array) -> tuple[Array, Array]:
    """States [b,c,h,p,n] that enter the chunks, and the state that leaves the last one."""

    def step(state: Array, chunk: tuple[Array, Array]) -> tuple[Array, Array]:
        added, decay = chunk
        return decay[..., None, None] * state + added, state

    last, entering = lax.scan(step, state, (jnp.moveaxis(added, 1, 0), jnp.moveaxis(decay, 1, 0)))
    return jnp.moveaxis(entering, 0, 1), last


def inverse_softplus(y: Array) -> Array:
    """x with softplus(x) = y, for y > 0."""
    return y + jnp.log(-jnp.expm1(-y))


def causal_conv(x: Array, kernel: Array, past: Array) -> tuple[Array, Array]:
    """Depthwise causal convolution of x [b,t,channel] with kernel [width,channel].

    `past` [b,width-1,channel] are the inputs before x. Returns the output and the inputs that the
    next call needs as its past.
    """
    width = kernel.shape[0]
    length = x.shape[1]
    padded = jnp.concatenate([past, x], axis=1)
    taps = (padded[:, k : k + length] * kernel[k][None, None] for k in range(width))
    return sum(taps, jnp.zeros_like(x)), padded[:, length:]
