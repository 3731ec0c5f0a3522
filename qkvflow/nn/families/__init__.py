"""How weights depend on depth: one file a family of curves, which registers itself.

| family | W(t) | parameters, in layers' worth |
|---|---|---|
| `per_layer` | a table with one entry per layer | L |
| `shared` | a constant | 1 |
| `generated` | F_0 + sum_k e_k(t) F_k | T + 1 |
| `gated` | W * 2 sigmoid(g(t)) | 1 and a little |
| `low_rank` | W + U diag(s(t)) V | 1 and a little |
| `looped` | a table with fewer entries than visits | distinct layers |
"""

from qkvflow.config.variants import FAMILIES as FAMILIES
from qkvflow.config.variants import Family as Family
from qkvflow.nn.families.gated import Gated as Gated
from qkvflow.nn.families.generated import Generated as Generated
from qkvflow.nn.families.looped import Looped as Looped
from qkvflow.nn.families.low_rank import LowRank as LowRank
from qkvflow.nn.families.per_layer import PerLayer as PerLayer
from qkvflow.nn.families.shared import Shared as Shared
