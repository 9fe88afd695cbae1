"""Clouds on the page: offers, pools, bills, and jobs that are forgotten."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import shared_browser as browser
from tests.support.fake_cloud import FakeCloud, fake_cloud_environment
from tests.support.instance import TestInstance, make_instance
from tests.support.kubernetes import Cluster, Node
from tests.support.page_checks import check_for_all
from tests.support.page_fixtures import page, show
from tests.support.ports import free_port

__all__ = ["browser", "page"]


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestInstance]:
    """An instance with a cluster, and with a pool at a cloud, whose machine never
    boots. It forgets what is over when it is told to.
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    FakeCloud(folder).add_fault("never_boots", times=9)
    (folder / "bill.json").write_text('{"m-lost": "4.2"}')
    environment = fake_cloud_environment(folder, free_port(2))
    cluster = Cluster([Node("a1", gpus=2)])
    with cluster, make_instance(**environment) as made:
        made.home.create()
        config = cluster.kubeconfig(folder / "kubeconfig", "")
        made.home.settings.write_text(
            "[retention]\njobs_days = 1e-9\nkeys_days = 0\n"
            f'[providers.kubernetes]\nkubeconfig = "{config}"\nnamespace = "default"\n'
            'prices = { "NVIDIA-A100-SXM4-40GB" = 3 }\n'
            '[pools.warm]\nprovider = "fakecloud"\ntype = "cpu.small"\nmin = 1\nmax = 2\n'
        )
        made.ok("up")
        yield made


def test_bills_stand_beside_what_was_counted(
    instance: TestInstance, page: Page
) -> None:
    show(page, instance, "/costs?show=bills")
    bill = page.get_by_role("article", name="Bill of fakecloud")
    expect(bill).to_contain_text("It was never compared.")
    bill.get_by_role("button", name="Compare now").click()
    form = page.get_by_role("dialog")
    expect(form).to_contain_text("The question may cost something")
    form.get_by_role("button", name="Ask the cloud").click()
    row = bill.get_by_role("row").filter(has_text="m-lost")
    expect(row).to_contain_text("$4.20")
    expect(row).to_contain_text("no attempt and no node of a pool has this machine")
    # Who looks again asks no cloud.
    page.reload()
    expect(row).to_contain_text("$4.20")
    check_for_all(page)


def test_offers_show_prices_and_problems(instance: TestInstance, page: Page) -> None:
    show(page, instance, "/offers")
    provider = page.get_by_role("article", name="kubernetes")
    expect(provider).to_contain_text("healthy")
    offer = page.get_by_role("row").filter(has_text="kubernetes/")
    expect(offer).to_contain_text("$6.00")
    check_for_all(page)
    page.get_by_label("Find an offer").fill("H100")
    expect(page.get_by_text("No offer is like that.")).to_be_visible()


def test_pools_and_rented_machines_are_shown_and_clouds_checked(
    instance: TestInstance, page: Page
) -> None:
    show(page, instance, "/clouds")
    pool = page.get_by_role("article", name="Pool warm")
    expect(pool).to_contain_text("1 node (min 1, max 2)")
    machine = page.get_by_role("row").filter(has_text="fakecloud")
    expect(machine).to_contain_text("pool warm")
    expect(machine).to_contain_text("$0.10")
    cloud = page.get_by_role("article", name="fakecloud")
    cloud.get_by_role("button", name="Check its permissions").click()
    expect(cloud.get_by_role("status")).to_contain_text("has all permissions")
    check_for_all(page)
    pool.get_by_role("button", name="Nodes of warm").click()
    nodes = page.get_by_role("region", name="Nodes of warm")
    expect(nodes.get_by_role("row").filter(has_text="booting")).to_contain_text(
        "cpu.small"
    )
    page.get_by_role("button", name="Close").click()
    cloud.get_by_role("button", name="Prices of fakecloud").click()
    expect(page.get_by_role("dialog")).to_contain_text("has no catalogue of prices")


def test_a_job_that_is_removed_while_it_is_open_says_so(
    instance: TestInstance, page: Page
) -> None:
    job = instance.submit(["true"])
    instance.wait(job)
    show(page, instance, f"/jobs/{job}")
    instance.ok("ledger", "prune")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("heading", name="No job")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text(job)
    page.get_by_role("link", name="All jobs").click()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
