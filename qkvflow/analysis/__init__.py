"""How a model is understood: spectra, Lyapunov exponents, trajectories, modulation, capacity.

Arrays in, arrays out. `ANALYSES` has whole analyses by name, with their numbers, figures and text
(`studies`, one file each).
"""

from qkvflow.analysis.capacity import movements as movements
from qkvflow.analysis.capacity import pac_bayes_gap as pac_bayes_gap
from qkvflow.analysis.capacity import perturbed as perturbed
from qkvflow.analysis.capacity import roughness as roughness
from qkvflow.analysis.capacity import stacks as stacks
from qkvflow.analysis.circuits import Circuit as Circuit
from qkvflow.analysis.circuits import circuits_of as circuits_of
from qkvflow.analysis.circuits import modulators as modulators
from qkvflow.analysis.corpus import Sample as Sample
from qkvflow.analysis.corpus import draw_windows as draw_windows
from qkvflow.analysis.flow import depths as depths
from qkvflow.analysis.flow import flow_of as flow_of
from qkvflow.analysis.flow import start as start
from qkvflow.analysis.flow import states as states
from qkvflow.analysis.lyapunov import lyapunov_exponents as lyapunov_exponents
from qkvflow.analysis.lyapunov import sequence_exponents as sequence_exponents
from qkvflow.analysis.sensitivity import sensitivity_rows as sensitivity_rows
from qkvflow.analysis.spectra import depth_rank as depth_rank
from qkvflow.analysis.spectra import eigenvalues as eigenvalues
from qkvflow.analysis.spectra import numerical_range as numerical_range
from qkvflow.analysis.spectra import singular_values as singular_values
from qkvflow.analysis.spectra import trend as trend
from qkvflow.analysis.study import ANALYSES as ANALYSES
from qkvflow.analysis.study import Analysis as Analysis
from qkvflow.analysis.study import Study as Study
from qkvflow.analysis.study import Subject as Subject
from qkvflow.analysis.trajectory import lens as lens
from qkvflow.analysis.trajectory import path as path
