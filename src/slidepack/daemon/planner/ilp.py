"""HiGHS, through highspy: the only module that imports it, and with it numpy."""

from collections.abc import Sequence
from math import inf

from highspy import HighsLp, HighsModelStatus, HighsSolution, HighsVarType, MatrixFormat

# The public class prints a line on standard output when it is made, before it can be silenced,
# and standard output is where plans go.
from highspy._core import _Highs

from slidepack.daemon.planner.milp import Milp, Solved

__all__ = ["HighsSolver"]


class HighsSolver:
    """Solves programs with HiGHS; one thread, so that the same program has the same answer."""

    def __init__(self, *, gap: float = 1e-3, seed: int = 0) -> None:
        """Choose how near to the optimum is near enough.

        Args:
            gap: relative distance to the dual bound at which to stop.
            seed: of the solver's choices.
        """
        self._gap, self._seed = gap, seed

    def solve(
        self,
        milp: Milp,
        *,
        seconds: float,
        start: Sequence[float] | None = None,
        presolve: bool = True,
    ) -> Solved:
        """Solve within so many seconds (see `milp.Solver`)."""
        highs = _Highs()
        for name, value in (
            ("output_flag", False),
            ("presolve", "choose" if presolve else "off"),
            ("threads", 1),
            ("random_seed", self._seed),
            ("mip_rel_gap", self._gap),
            ("time_limit", max(0.01, seconds)),
        ):
            highs.setOptionValue(name, value)
        highs.passModel(_linear_program(milp))
        if start is not None:
            solution = HighsSolution()
            solution.col_value = list(start)
            highs.setSolution(solution)
        highs.run()
        status, info = highs.getModelStatus(), highs.getInfo()
        if status == HighsModelStatus.kInfeasible:
            return Solved(values=None, objective=inf, dual_bound=inf, optimal=True)
        found = info.primal_solution_status == 2
        mixed = any(milp.integer)
        return Solved(
            values=[float(value) for value in highs.getSolution().col_value] if found else None,
            objective=info.objective_function_value if found else inf,
            dual_bound=info.mip_dual_bound if mixed else info.objective_function_value,
            optimal=status == HighsModelStatus.kOptimal,
            duals=[] if mixed else [float(dual) for dual in highs.getSolution().row_dual],
        )


def _linear_program(milp: Milp) -> HighsLp:
    program = HighsLp()
    program.num_col_, program.num_row_ = len(milp.costs), len(milp.rows)
    program.col_cost_ = milp.costs
    program.col_lower_, program.col_upper_ = [0.0] * len(milp.costs), milp.upper
    program.row_lower_, program.row_upper_ = milp.row_lower, milp.row_upper
    starts, columns, factors = [0], list[int](), list[float]()
    for row in milp.rows:
        columns += [column for column, _ in row]
        factors += [factor for _, factor in row]
        starts.append(len(columns))
    matrix = program.a_matrix_
    matrix.format_ = MatrixFormat.kRowwise
    matrix.start_, matrix.index_, matrix.value_ = starts, columns, factors
    program.integrality_ = [
        HighsVarType.kInteger if whole else HighsVarType.kContinuous for whole in milp.integer
    ]
    return program
