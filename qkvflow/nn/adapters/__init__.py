"""Adapters: low-rank curves added to curves that are there already, one file each.

    lora         W(t) = base(t) + (alpha / rank) A(t) B(t), with factors of their own in every layer
    depth_lora   W(t) = base(t) + U diag(s(t)) V, a curve over depth (`LowRank`)

Both are zero at the start, exactly: B and s begin at zero. They go around whatever curve is there, so
that every family of weights can be adapted, and a model with adapters is a model like any other.
"""

from qkvflow.nn.adapters.depth_lora import DepthLora as DepthLora
from qkvflow.nn.adapters.lora import Adapted as Adapted
from qkvflow.nn.adapters.lora import Lora as Lora
from qkvflow.nn.adapters.placing import add_adapters as add_adapters
