"""The sandbox for chat templates: somebody else's programs, with every step and value counted.

Jinja's own sandbox keeps a template from Python's insides. It does not keep it from running for
ever or from filling the memory: one `'x' * 10 ** 10` is a single step. So whatever repeats takes a
step from a budget, and whatever makes a value is measured, before it is made where one step could
make it huge. No value is changed, so a template within the limits renders as in plain Jinja.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinMethodType
from typing import Any, Final, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

from slidepack.engine.data.template_limits import (
    FILTER_CHECKS,
    Budget,
    check_braces,
    check_integer,
    check_method,
    check_operation,
)

_STEPS_A_NODE: Final = 10
"""Of a template's program; the longest published ones have some thousand nodes."""
_FILTER_NAMES: Final = """
    abs capitalize count d default dictsort first float format groupby indent int items join last
    length list lower map max min reject rejectattr replace reverse round safe select selectattr
    sort string striptags sum title tojson trim unique upper wordcount
"""


class _Namespace(jinja2.utils.Namespace):
    """A namespace that has no written form: it could hold itself many times over."""

    def __repr__(self) -> str:
        """Refuse."""
        raise jinja2.exceptions.SecurityError("the template prints a namespace")


class _Instrument(jinja2.visitor.NodeTransformer):
    """Puts the counting into a parsed template."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.For:
        self.generic_visit(node)
        step = _call("count_step", [], node.lineno)
        node.body.insert(0, jinja2.nodes.ExprStmt(step, lineno=node.lineno))
        if node.test is not None:
            step = _call("count_step", [], node.lineno)
            node.test = jinja2.nodes.And(step, node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Call:
        self.generic_visit(node)
        return _call("concat_values", node.nodes, node.lineno)

    def _literal(self, node: jinja2.nodes.Expr) -> jinja2.nodes.Expr:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node
        return _call("checked", [node], node.lineno)

    visit_List = visit_Tuple = visit_Dict = _literal

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Expr:
        self.generic_visit(node)
        sliced = isinstance(node.arg, jinja2.nodes.Slice)
        return _call("sliced", [node], node.lineno) if sliced else node


def _call(name: str, arguments: list[jinja2.nodes.Expr], lineno: int) -> jinja2.nodes.Call:
    function = jinja2.nodes.EnvironmentAttribute(name, lineno=lineno)
    return jinja2.nodes.Call(function, arguments, [], None, None, lineno=lineno)


class TemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """An environment whose templates spend a budget."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, extensions: list[Any]) -> None:
        """Build the environment; settings as in transformers."""
        self.budget = Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=extensions,
            optimized=False,
            finalize=self._finalize,
        )
        self.concat = self._concat  # type: ignore[method-assign]
        self.globals.pop("lipsum", None)
        self.globals["namespace"] = _Namespace
        # Nothing is escaped here, so that text needs no mark that says it is safe.
        known: dict[str, Any] = self.filters | {"safe": str, "tojson": to_json}
        self.filters = {
            name: self._guard(known[name], FILTER_CHECKS.get(name))
            for name in _FILTER_NAMES.split()
        }
        tests: dict[str, Any] = self.tests
        self.tests = {name: self._guard(test) for name, test in tests.items()}

    def count_step(self) -> bool:
        """Count one round of a loop."""
        return self.budget.take()

    def concat_values(self, *parts: object) -> str:
        """Join values as `~` does."""
        self.budget.allow(sum(self.budget.measure(part, plain=True) for part in parts))
        return "".join(map(str, parts))

    def checked(self, value: Any) -> Any:
        """Measure a value that was just made."""
        if isinstance(value, str):
            self.budget.allow(len(value))
        elif isinstance(value, list | tuple | dict):
            self.budget.measure(value)
        else:
            check_integer(value)
            self.budget.take()
        return value

    def sliced(self, value: Any) -> Any:
        """Count a slice, which is a copy: one name for each would be enough to fill the memory."""
        if isinstance(value, str | list | tuple):
            self.budget.allow(len(value))
        return value

    def call(
        __self,
        __context: jinja2.runtime.Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call what a template calls; odd names, for its own keyword arguments may be any."""
        if getattr(__obj, "__self__", None) is __self:
            return __obj(*args)
        __self.budget.take()
        if isinstance(__obj, BuiltinMethodType):
            args = check_method(__self.budget, __obj, args)
        return __self.checked(
            jinja2.sandbox.ImmutableSandboxedEnvironment.call(
                __self, __context, __obj, *args, **kwargs
            )
        )

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Carry out an operation whose result is not too large."""
        check_operation(self.budget, operator, left, right)
        return self.checked(self.binop_table[operator](left, right))

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Refuse at once; Jinja would print an unsafe attribute as nothing."""
        raise jinja2.exceptions.SecurityError(
            f"the template asks for {attribute!r} of a {type(obj).__name__}"
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a `format` that looks at widths and arguments first."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern: str = value.__self__

        def measured(*args: Any, **kwargs: Any) -> str:
            check_braces(self.budget, pattern, (*args, *kwargs.values()))
            return str(wrapped(*args, **kwargs))

        return measured

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        # Python compiles what comes of it, a step of which can take seconds and gigabytes.
        self.budget.take(_STEPS_A_NODE * sum(1 for _ in tree.find_all(jinja2.nodes.Node)))
        _Instrument().visit(tree)
        tree.set_environment(self)
        return tree

    def _concat(self, parts: Iterable[str]) -> str:
        gathered = list(parts)
        self.budget.allow(sum(map(len, gathered)))
        return "".join(gathered)

    def _finalize(self, value: Any) -> Any:
        if not isinstance(value, str):
            self.budget.measure(value, plain=True)
        return value

    def _guard(
        self, function: Callable[..., Any], check: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        """Return a filter or test that spends steps, and whose result is measured."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.budget.take()
            if check is not None:
                args = check(self.budget, function, args, kwargs)
            result = function(*args, **kwargs)
            return self._stepping(result) if isinstance(result, Iterator) else self.checked(result)

        guarded.__dict__.update(function.__dict__ if hasattr(function, "__dict__") else {})
        return guarded

    def _stepping(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            yield self.checked(item)
            self.budget.take()


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers' filter of that name does; Jinja's own escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
