"""What a layer is: weights as curves over depth, blocks that know nothing of time, integrators."""

from qkvflow.nn.adapters import Adapted as Adapted
from qkvflow.nn.attention import Attention as Attention
from qkvflow.nn.dynamic import TABLEAUS as TABLEAUS
from qkvflow.nn.dynamic import Block as Block
from qkvflow.nn.dynamic import Steps as Steps
from qkvflow.nn.dynamic import Tableau as Tableau
from qkvflow.nn.dynamic import integrate as integrate
from qkvflow.nn.linear import Embedding as Embedding
from qkvflow.nn.linear import Linear as Linear
from qkvflow.nn.mlp import MLP as MLP
from qkvflow.nn.norm import Norm as Norm
from qkvflow.nn.ssm import SelectiveSSM as SelectiveSSM
from qkvflow.nn.time_embed import LayerVector as LayerVector
from qkvflow.nn.time_embed import LearnedFourier as LearnedFourier
from qkvflow.nn.time_embed import Sinusoidal as Sinusoidal
from qkvflow.nn.time_embed import TimeNetwork as TimeNetwork
from qkvflow.nn.time_embed import layer_times as layer_times
from qkvflow.nn.weights import Gated as Gated
from qkvflow.nn.weights import Generated as Generated
from qkvflow.nn.weights import LowRank as LowRank
from qkvflow.nn.weights import PerLayer as PerLayer
from qkvflow.nn.weights import Shared as Shared
from qkvflow.nn.weights import Weight as Weight
from qkvflow.nn.weights import resolve as resolve
