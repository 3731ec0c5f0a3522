"""What a layer is: weights as curves over depth, blocks that know nothing of time, integrators."""

from qkvflow.nn.adapters import Adapted as Adapted
from qkvflow.nn.depth import LayerPlan as LayerPlan
from qkvflow.nn.dynamic import PARTS as PARTS
from qkvflow.nn.dynamic import Block as Block
from qkvflow.nn.dynamic import integrate as integrate
from qkvflow.nn.families import FAMILIES as FAMILIES
from qkvflow.nn.families import Gated as Gated
from qkvflow.nn.families import Generated as Generated
from qkvflow.nn.families import LowRank as LowRank
from qkvflow.nn.families import PerLayer as PerLayer
from qkvflow.nn.families import Shared as Shared
from qkvflow.nn.integrators import INTEGRATORS as INTEGRATORS
from qkvflow.nn.linear import Embedding as Embedding
from qkvflow.nn.linear import Linear as Linear
from qkvflow.nn.norm import Norm as Norm
from qkvflow.nn.parameters import Parameter as Parameter
from qkvflow.nn.weights import resolve as resolve
