"""The analyses of the package, one file each, in the order of the page."""

# isort: off
from qkvflow.analysis.studies.lyapunov import Lyapunov as Lyapunov
from qkvflow.analysis.studies.trajectory import Trajectory as Trajectory
from qkvflow.analysis.studies.spectra import Spectra as Spectra
from qkvflow.analysis.studies.modulation import Modulation as Modulation
from qkvflow.analysis.studies.capacity import Capacity as Capacity
