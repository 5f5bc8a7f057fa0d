"""The routes of the HTML pages."""

from litestar import Router

from slidepack.web.chat_page import chat_pages
from slidepack.web.continue_api import continue_form
from slidepack.web.datasets_page import dataset_pages
from slidepack.web.doctor_page import doctor_pages
from slidepack.web.export_pages import export_page_routes
from slidepack.web.home_page import home_pages
from slidepack.web.job_page import job_pages
from slidepack.web.login_page import login_pages
from slidepack.web.models_page import model_pages
from slidepack.web.new_job_page import new_job_pages
from slidepack.web.plan_page import plan_pages
from slidepack.web.queue_page import queue_pages
from slidepack.web.remedies_part import remedy_parts
from slidepack.web.removal_page import removal_pages
from slidepack.web.schedule_page import schedule_pages
from slidepack.web.settings_page import settings_pages
from slidepack.web.sweep_page import sweep_pages


def page_router() -> Router:
    """Return the pages' routes."""
    return Router(
        path="/",
        include_in_schema=False,
        route_handlers=[
            *login_pages(),
            *settings_pages(),
            *home_pages(),
            *new_job_pages(),
            *dataset_pages(),
            *removal_pages(),
            *job_pages(),
            continue_form,
            *export_page_routes(),
            *chat_pages(),
            *model_pages(),
            *plan_pages(),
            *schedule_pages(),
            *doctor_pages(),
            *remedy_parts(),
            *queue_pages(),
            *sweep_pages(),
        ],
    )
