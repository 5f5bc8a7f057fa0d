"""The picture of the queue, taken while the queue changes."""

from support.plan_shop import NOW, PlanShop

from slidepack.daemon.planning.picture import task_key
from slidepack.daemon.planning.queue_reader import QueueReader
from slidepack.daemon.store.jobs import JobRecord, JobStore


class DiesMeanwhile(JobStore):
    """The worker of the live jobs dies right after they were read."""

    def live(self) -> list[JobRecord]:
        found = super().live()
        for job in found:
            self.move(job.id, "queued", "the worker died", NOW)
        return found


def test_a_job_whose_worker_dies_between_two_reads_is_there_once(shop: PlanShop) -> None:
    running, waiting = shop.add(), shop.add()
    shop.run(running)
    reader = QueueReader(
        database=shop.stores.database,
        jobs=DiesMeanwhile(shop.stores.database),
        catalogue=shop.catalogue,
        report=lambda: shop.report,
        policy=lambda: shop.policy,
        device="auto",
    )
    picture = reader.picture(NOW)
    assert [job.key for job in picture.jobs] == [task_key(running), task_key(waiting)]
    # What is planned for it does not hold: the queue is another one by now.
    assert picture.queue != reader.queue()
