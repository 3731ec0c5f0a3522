"""silu against jax.nn.silu: values, gradients both ways, extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.nn.silu import silu, silu_gate

Z = jnp.asarray([-1e4, -100.0, -89.0, -20.0, -1.3, -1e-3, 0.0, 1e-3, 0.7, 20.0, 89.0, 1e4])
X = jnp.linspace(-3.0, 3.0, Z.size)


def reference(x, z):
    return x * jax.nn.silu(z)


def test_silu_is_silu():
    np.testing.assert_allclose(silu(Z), jax.nn.silu(Z), rtol=1e-6, atol=1e-30)
    ours, theirs = (jax.vmap(jax.grad(f))(Z) for f in (silu, jax.nn.silu))
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("which", [0, 1])
def test_the_gate_and_both_its_gradients(which):
    np.testing.assert_allclose(silu_gate(X, Z), reference(X, Z), rtol=1e-6, atol=1e-30)
    ours, theirs = (jax.vmap(jax.grad(f, argnums=which))(X, Z) for f in (silu_gate, reference))
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


def test_forward_derivatives():
    for ours, theirs, arguments in ((silu, jax.nn.silu, (Z,)), (silu_gate, reference, (X, Z))):
        directions = tuple(jnp.cos(a) for a in arguments)
        _, tangent = jax.jvp(ours, arguments, directions)
        _, expected = jax.jvp(theirs, arguments, directions)
        np.testing.assert_allclose(tangent, expected, rtol=2e-6, atol=1e-6)
