"""Templates render from their page's context alone; a misspelt field is an error."""

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from jinja2 import UndefinedError, meta
from support.job_records import FAILURE, job_record

from slidepack.daemon.states import JobState
from slidepack.daemon.store.catalogue import DatasetRecord
from slidepack.engine.contract.job import (
    ContinueRef,
    DatasetRef,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
)
from slidepack.engine.data.report import DataReport
from slidepack.web.app import template_engine
from slidepack.web.contexts import JobPage, SamplePair
from slidepack.web.export_view import ExportsView
from slidepack.web.results import JobDetail

_FOLDER = Path("src/slidepack/web/templates")
_ROOT = next(p for p in Path(__file__).resolve().parents if (p / _FOLDER).is_dir())
_ALL = sorted(str(p.relative_to(_ROOT / _FOLDER)) for p in (_ROOT / _FOLDER).rglob("*.html"))
_OF_EXPORT = "parts/job_export_progress.html"
_OF_JOB = [
    name
    for name in _ALL
    if name == "job.html" or (name.startswith("parts/job_") and name != _OF_EXPORT)
]
_OF_ERROR = ["error.html", "parts/error.html"]


def render(name: str, **context: object) -> str:
    return template_engine().get_template(name).render(**context)


def job_page(
    state: JobState,
    *,
    begun: bool = True,
    method: LoraMethod | FullMethod | None = None,
    rescuable: bool = False,
    origin: ContinueRef | None = None,
    continues: int | None = None,
    continued_by: tuple[int, ...] = (),
    datasets: tuple[DatasetRecord, ...] = (),
) -> JobPage:
    row = {"at": 5.0, "from_state": "draft", "to_state": state, "reason": "because"}
    spec = JobSpec(
        name="A <job>",
        base=ModelRef(model_id="small", path="/m", content_hash="a" * 64),
        dataset=DatasetRef(dataset_id="1", path="/d", content_hash="b" * 64),
        method=method or LoraMethod(),
        steps=10 if begun else 0,
        epochs=0.0 if begun else 2.0,
        continues=origin,
    )
    warning = {"attempt": 1, "code": "RUN-SLOW", "message": "It is <slow>."}
    pairs = [
        SamplePair(prompt="<ask>", before="<b>", after=None),
        SamplePair(prompt="again", before="<b>", after="<i>"),
    ]
    return JobPage(
        csrf_token="token",
        detail=JobDetail(
            job=msgspec.structs.replace(
                job_record(state, begun=begun), continues=continues, continued_by=continued_by
            ),
            spec=spec,
            attempts=[],
            transitions=[row],
            evaluations=[],
            samples=[],
            warnings=[warning] if begun else [],
        ),
        samples=pairs if begun else [],
        log="<log>" if begun else "",
        eval_before=3.0 if begun else None,
        eval_now=2.0 if begun else None,
        last_event_id=4,
        rescuable=rescuable,
        continuable=state == "completed",
        datasets=list(datasets),
        exports=ExportsView(job_id=7, cards=()),
    )


_DATASET = DatasetRecord(
    id=1,
    name="<rows>.jsonl",
    bytes=2000,
    source_hash="",
    form="chat",
    report=DataReport(
        family="chat",
        rows=1,
        accepted=1,
        rejected=0,
        reasons={},
        ignored_columns=(),
        first_questions=(),
        content_hash="",
    ),
    created_at=1.0,
)


@pytest.mark.parametrize("name", _OF_JOB)
@pytest.mark.parametrize("state", get_args(JobState))
def test_job_templates_render(name: str, state: JobState) -> None:
    methods: tuple[LoraMethod | FullMethod, ...] = (LoraMethod(), FullMethod())
    for begun, method in product((True, False), methods):
        text = render(name, page=job_page(state, begun=begun, method=method))
        for markup in ("<job>", "<ask>", "<b>", "<i>", "<log>", "<slow>", "<failed>"):
            assert markup not in text


def test_a_full_job_shows_where_its_model_is_and_has_no_adapter_to_download() -> None:
    pages = (
        job_page("completed"),
        job_page("completed", method=FullMethod(moments="bf16", optimizer_engine="cpu")),
        job_page("running", method=FullMethod()),
    )
    adapter, model, running = (render("job.html", page=page) for page in pages)
    folder = "<code>somewhere/model</code>"
    assert "Download adapter" in adapter
    assert folder not in adapter
    assert folder in model
    assert "every weight, moments bf16, optimizer cpu" in model
    assert folder not in running
    for text in (model, running):
        assert "adapter" not in text.casefold()
        assert "rank" not in text.casefold()


def test_a_job_is_rescued_only_where_there_is_something_to_go_on_from() -> None:
    offered, plain = (
        render("parts/job_actions.html", page=job_page("failed", rescuable=rescuable))
        for rescuable in (True, False)
    )
    assert 'hx-post="/jobs/7/rescue"' in offered
    assert "rescue" not in plain
    for text in (offered, plain):
        assert 'hx-post="/jobs/7/retry"' in text


def test_a_chain_of_jobs_is_linked_on_both_ends_and_says_what_was_taken() -> None:
    origin = ContinueRef(
        job="3", path="/o", kind="checkpoint", digest="d", step=40, taken="state", base_loss=2.5
    )
    page = job_page("running", origin=origin, continues=3, continued_by=(8, 9))
    text = " ".join(render("parts/job_continue.html", page=page).split())
    assert (
        'from <a href="/jobs/3">job 3</a> after step 40, with its optimizer state; '
        "the loss before is that job's, and the untouched base has 2.500."
    ) in text
    assert '<a href="/jobs/8">job 8</a>, <a href="/jobs/9">job 9</a>.' in text
    assert "go-on" not in text
    weights = msgspec.structs.replace(origin, taken="weights", base_loss=None)
    text = render("parts/job_continue.html", page=job_page("completed", origin=weights))
    assert "job 3, which was deleted, after step 40, with its weights alone; " in text
    assert "untouched" not in text
    assert 'hx-post="/jobs/7/continue"' in text


def test_a_job_goes_on_with_its_own_data_or_any_other() -> None:
    other = msgspec.structs.replace(_DATASET, id=5, name="<more>.jsonl")
    page = job_page("completed", datasets=(_DATASET, other))
    text = render("parts/job_continue.html", page=page)
    assert re.findall('<option value="(.*?)"', text) == ["", "5"]
    assert "&lt;more&gt;.jsonl" in text


@pytest.mark.parametrize("name", _OF_ERROR)
def test_error_templates_render(name: str) -> None:
    text = render(name, error=FAILURE)
    assert "RUN-FAILED" in text
    assert "It &lt;failed&gt;." in text


def _texts(tree: ast.AST) -> set[str]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def _named(source: str) -> Iterator[str]:
    """Yield the templates that a module names, of f-strings what its own words make of them."""
    tree = ast.parse(source)
    words = _texts(tree)
    yield from (text for text in words if text in _ALL)
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        parts = [
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else "(.+)"
            for part in node.values
        ]
        for name in _ALL:
            found = re.fullmatch("".join(parts), name)
            if found is not None and words.issuperset(found.groups()):
                yield name


def _refers_to(name: str) -> set[str]:
    engine = template_engine().engine
    tree = engine.parse((_ROOT / _FOLDER / name).read_text("utf-8"))
    return {one for one in meta.find_referenced_templates(tree) if one is not None}


def test_every_template_is_shown_by_some_route() -> None:
    modules = (_ROOT / _FOLDER).parent.glob("*.py")
    seen: set[str] = set()
    ahead = {name for module in modules for name in _named(module.read_text("utf-8"))}
    while ahead:
        seen |= ahead
        ahead = {one for name in ahead for one in _refers_to(name)} - seen
    assert sorted(set(_ALL) - seen) == []
    assert sorted(seen - set(_ALL)) == []


def test_misspelt_field_is_an_error() -> None:
    engine = template_engine().engine
    page = job_page("running")
    for source in ("{{ page.csrf }}", "{{ page.detail.job.sate }}", "{% if pag %}{% endif %}"):
        with pytest.raises(UndefinedError):
            engine.from_string(source).render(page=page)


def test_no_template_has_inline_script_or_style() -> None:
    for name in _ALL:
        text = (_ROOT / _FOLDER / name).read_text()
        assert "<style" not in text, name
        assert " style=" not in text, name
        assert "hx-on" not in text, name
        for tag in text.split("<script")[1:]:
            assert tag.lstrip().startswith('src="/static/'), name
