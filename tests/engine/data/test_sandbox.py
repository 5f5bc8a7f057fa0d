"""Templates are somebody else's programs: none gets out, none runs for ever, none fills memory."""

import contextlib
import resource
import threading
import time
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import save_tokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import ChatRow, Reject, Turn
from slidepack.engine.data.template import ChatTemplate, TemplateRejectedError
from slidepack.engine.data.template_limits import TemplateLimitError
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.data.too_long import encode_rows

VALUES: dict[str, Any] = {"messages": [{"role": "user", "content": "line\n\nline"}]}
ROW = ChatRow(4, (Turn("user", "line\n\nline", False), Turn("assistant", "a")))

DOUBLING = "{% set ns = namespace(x='aaaa') %}{% for i in range(99) %}{% set ns.x = "
ENDLESS = {
    "loops in loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}"
    "{% endfor %}",
    "loops that never enter": "{% for i in range(9999) %}{% for j in range(9999) if false %}"
    "{% endfor %}{% endfor %}",
    "loops that write": "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}"
    "{% endfor %}",
    "loops that compare": "{% set a = 'ab' * 1000000 %}{% set b = 'ab' * 1000000 %}"
    "{% for i in range(99999) %}{% if a == b %}{% endif %}{% endfor %}",
    "macros that branch": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "filters in loops": "{% for i in range(9999) %}{{ range(9999) | map('string') | list }}"
    "{% endfor %}",
    "string times number": "{{ 'a' * 10 ** 10 }}",
    "list times number": "{{ [0] * 10 ** 9 }}",
    "powers": "{{ 9 ** 9999999 }}",
    "doubling by ~": DOUBLING + "ns.x ~ ns.x %}{% endfor %}",
    "doubling by +": DOUBLING + "ns.x + ns.x %}{% endfor %}",
    "doubling by join": DOUBLING + "[ns.x, ns.x] | join %}{% endfor %}",
    "doubling by a method": DOUBLING + "ns.x.join([ns.x, ns.x]) %}{% endfor %}",
    "doubling by a list": DOUBLING + "[ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "doubling by format": DOUBLING + "'%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "doubling by braces": DOUBLING + "'{0}{0}'.format(ns.x) %}{% endfor %}",
    "a set block": "{% set x %}{% for i in range(9999) %}{{ 'y' * 99999 }}{% endfor %}{% endset %}",
    "a width in percent": "{{ '%1000000000d' % 1 }}",
    "a width behind a key": "{{ '%(a)1000000000d' % {'a': 1} }}",
    "a width behind a key with brackets": "{{ '%((a))1000000000d' % {'(a)': 1} }}",
    "a precision in percent": "{{ '%.1000000000f' % 1 }}",
    "a width from an argument": "{{ '%*d' % (1000000000, 1) }}",
    "a width in a filter": "{{ '%1000000000d' | format(1) }}",
    "a width in braces": "{{ '{:>1000000000}'.format('x') }}",
    "a width inside a width": "{{ '{0:>{1}}'.format('x', 1000000000) }}",
    "indent": "{{ messages[0]['content'] | indent(1000000000) }}",
    "a key's width in a filter": "{{ '%(a)1000000000d' | format(a=1) }}",
    "joining what is walked once": "{{ ('x' * 1000000).join(range(9999) | map('string')) }}",
    "separators of JSON": "{{ range(9999) | list | tojson(separators=('x' * 1000000, ':')) }}",
    "an indent that gives steps back": "{% for i in range(99999) %}"
    "{{ [1] | tojson(indent=-100000000) }}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "long division": "{{ (('f' * 1900000) | int(base=16)) // (('e' * 950000) | int(base=16)) }}",
    "division of a number as it is written": "{{ 0x" + "f" * 3000 + " % 3 }}",
    "slices of a text": "{% set s = 'x' * 1900000 %}"
    + "".join(f"{{% set s{i} = s[1:] %}}" for i in range(999)),
    "slices of a list": "{% set s = range(60000) | list %}"
    + "".join(f"{{% set s{i} = s[1:] %}}" for i in range(999)),
    "indented JSON": "{{ messages | tojson(indent=1000000000) }}",
    "replace": "{{ ('x' * 3000) | replace('x', 'y' * 100000) }}",
    "the method replace": "{{ ('x' * 3000).replace('', 'y' * 100000) }}",
    "round": "{{ 123456 | round(-1000000000) }}",
    "deep nesting": "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}"
    "{% set ns.x = [ns.x] %}{% endfor %}",
}


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_beyond_its_limits_is_a_broken_model_at_once(
    tmp_path: Path, template: str
) -> None:
    save_tokenizer(tmp_path, template=template)
    tokenizer = load_tokenizer(tmp_path)
    threads = threading.active_count()
    highest_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.thread_time()
    with pytest.raises(SlidepackError) as caught:
        encode_rows(ROW, tokenizer, 100)
    # Processor time, so that a busy computer changes nothing.
    assert time.thread_time() - start < 2
    assert caught.value.report.code == "MODEL-BROKEN"
    assert "chat_template: it " in caught.value.report.why
    assert threading.active_count() == threads
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < highest_kib + 300_000


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ ''['__class__'] }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(x=1) }}",
        "{{ (1).to_bytes(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ dict.fromkeys(range(9)) }}",
        "{{ lipsum(n=1000) }}",
        "{{ range(10 ** 9) }}",
        "{{ namespace(x=1) }}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | string }}",
        "{{ messages | map('upper') }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% include 'x' %}",
        "{{ [[1], [2]] | sum(start=[]) }}",
        "{{ strftime_now('%99999999Y' ~ 'x' * 1000000) }}",
    ],
)
def test_what_no_template_needs_is_refused_row_by_row(tmp_path: Path, template: str) -> None:
    save_tokenizer(tmp_path, template=template)
    (reject,) = encode_rows(ROW, load_tokenizer(tmp_path), 100)
    assert isinstance(reject, Reject)
    assert (reject.line, reject.reason) == (4, "template-refused")


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' | center(1000000000) }}",
        "{{ messages | batch(1000000000, 'x') }}",
        "{{ messages | attr('append') }}",
        "{% for " + "x" * 300_000 + " in y %}{% endfor %}",
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
        "{{ a }}" * 36_000,
        "{{ " + "~".join("a" * 100_000) + " }}",
        "{{ " + "not " * 60_000 + "a }}",
    ],
)
def test_what_cannot_be_compiled_is_a_broken_model(tmp_path: Path, template: str) -> None:
    save_tokenizer(tmp_path, template=template)
    start = time.thread_time()
    with pytest.raises(SlidepackError) as caught:
        load_tokenizer(tmp_path)
    assert time.thread_time() - start < 10, "it does not grow with the template"
    assert caught.value.report.code == "MODEL-BROKEN"


HARMLESS = [
    "{{ messages | length }}{{ messages[0].content.split('\n') | join('|') }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.revindex }}{% else %}none{% endfor %}",
    "{{ '**%s** 100%%' % 'x' }}{{ '%5.2f' % 1.5 }}{{ '{:>5}'.format('x') }}{{ '{{}}'.format() }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{% if messages | selectattr('role', 'equalto', 'nobody') %}a generator is true{% endif %}",
    "{{ messages | map(attribute='role') | unique | sort | join(', ') }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}{{ ns.n * 3 % 2 }}{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 / 2 }}{{ -ns.n }}",
    "{% set x = 'a' ~ 1 ~ none ~ true %}{{ x }}{{ x | upper | replace('A', 'b') | title }}",
    "{% macro turn(m, end='!') %}{{ m.role ~ end }}{% endmacro %}{{ turn(messages[0], end='?') }}",
    "{% set x %}{% for m in messages %}{{ m.role }}{% endfor %}{% endset %}{{ x | indent(2) }}",
    "{% filter upper %}{{ messages[0].role }}{% endfilter %}{{ 'a\nb' | indent(4, first=True) }}",
    "{% for k, v in {'b': 1, 'a': [2, 3]} | dictsort %}{{ k }}{{ v }}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{{ (1, 2)[0] }}",
    "{{ 3.14159 | round(2) }}{{ [1, 2] | sum }}{{ '3' | int + 4 }}{{ [3, 1] | sort | first }}",
    "{{ missing is defined }}{{ missing | default('d') }}{{ 'a' in 'ab' }}",
    "{% for n in [[1, [2]]] recursive %}{{ n if n is number else loop(n) }}{% endfor %}",
    "{{ '%(a)s, %(b)5.1f %%' % {'a': 'in 2024', 'b': 2} }}{{ '100% (2024)' | replace('2', '3') }}",
    "{{ ', '.join(messages | map(attribute='role')) }}{{ ', '.join({'a': 1}) }}",
    "{{ messages[:1] | length }}{{ messages[::-1][0].role }}{{ 'abc'[1:] }}",
    "{% set j = joiner('-') %}{% for i in range(3) %}{{ j() }}{{ i }}{% endfor %}",
]


@pytest.mark.parametrize("template", HARMLESS)
def test_what_templates_do_comes_out_as_in_plain_jinja(template: str) -> None:
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert ChatTemplate(template).render(VALUES) == plain.from_string(template).render(VALUES)


@given(
    st.text("{}% for in range(9)|join'~*=#-\nxmessagesifendset0", max_size=60).map(
        lambda text: "{{ " + text + " }}{% " + text[::-1] + " %}"
    )
)
def test_any_text_is_a_template_or_is_refused(source: str) -> None:
    with contextlib.suppress(ValueError, TemplateRejectedError, TemplateLimitError):
        ChatTemplate(source).render(VALUES)


def test_a_long_conversation_is_within_the_limits() -> None:
    turns = [{"role": "user", "content": "x" * 20_000} for _ in range(1500)]
    template = ChatTemplate(
        "{% set ns = namespace(text='') %}{% for m in messages %}"
        "{{ '<|start|>' + m['role'] + '\n' + m['content'] | trim + '<|end|>\n' }}{% endfor %}"
    )
    assert len(template.render({"messages": turns})) > 30_000_000


def test_renders_in_several_threads_spend_budgets_of_their_own() -> None:
    template = ChatTemplate("{% for i in range(20000) %}{% endfor %}{{ messages | length }}")
    found: list[str] = []

    def render() -> None:
        found.extend(template.render(VALUES) for _ in range(12))

    threads = [threading.Thread(target=render) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["1"] * 36
