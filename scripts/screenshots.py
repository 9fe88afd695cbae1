"""Take the pictures of the page that stand in the documents, for `make screenshots`.

They show a server of their own (`example_lab.py`). With `--all FOLDER`, it takes every
screen in each look, to be looked at: light and dark, wide and narrow.
"""

import argparse
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.example_lab import Lab, example_lab  # noqa: E402

PICTURES = ROOT / "docs/assets"
SIZES = {"wide": (1280, 800), "narrow": (390, 844)}
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
COLOURS = 128


@dataclass(frozen=True)
class Screen:
    """Where a screen is, and what shows that it is there. `link`: what is followed from
    there.
    """

    path: str
    shows: str
    link: str = ""


SCREENS: Mapping[str, Screen] = {
    "overview": Screen("/", "text=Newest jobs"),
    "jobs": Screen("/jobs", "text=pretrain"),
    "job": Screen("/jobs/{job}", ".uplot"),
    "submit": Screen("/submit", "[role=form]"),
    "schedules": Screen("/schedules", "text=nightly"),
    "sweeps": Screen("/sweeps", "text=search"),
    "sweep": Screen("/sweeps", ".parallel polyline", link="search"),
    "flow": Screen("/sweeps", "svg", link="report"),
    "studies": Screen("/studies", "text=Llama-3.1-70B-Instruct"),
    "batches": Screen("/batches", "text=count_words"),
    "data": Screen("/data", "text=corpus"),
    "models": Screen("/models", "text=qwen2.5:7b"),
    "machines": Screen("/machines", "article"),
    "offers": Screen("/offers", "article"),
    "clouds": Screen("/clouds", "text=pool warm"),
    "verification": Screen("/verification", "text=rented-1"),
    "costs": Screen("/costs", "text=vision"),
    "people": Screen("/people", "text=ana"),
    "shares": Screen("/people?show=shares", "table"),
    "reservations": Screen("/people?show=reservations", "text=vision"),
    "audit": Screen("/audit", "text=job"),
}
# The pictures of the documents, with those that are also shown dark.
ALSO_DARK = ("overview", "job", "sweep")
ONLY_TO_LOOK_AT = ("schedules", "sweeps")


def main() -> None:
    """Start a lab, and look at it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER", dest="folder")
    folder: Path | None = parser.parse_args().folder
    with example_lab() as lab, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            take_all(browser, lab, folder)
        else:
            take_for_documents(browser, lab)


def take_for_documents(browser: Browser, lab: Lab) -> None:
    """Each screen wide and light, and some of them dark."""
    names_of: Mapping[Theme, Sequence[str]] = {
        "light": [name for name in SCREENS if name not in ONLY_TO_LOOK_AT],
        "dark": ALSO_DARK,
    }
    for theme, names in names_of.items():
        page = signed_in(browser, lab, theme, "wide")
        for name in names:
            show(page, lab, SCREENS[name])
            picture(page, PICTURES / f"page-{name}-{theme}.png")
        page.context.close()


def take_all(browser: Browser, lab: Lab, folder: Path) -> None:
    """Each screen in each look, in its whole length."""
    for theme in THEMES:
        for size in SIZES:
            page = signed_in(browser, lab, theme, size)
            for name, screen in SCREENS.items():
                show(page, lab, screen)
                path = folder / f"{name}-{theme}-{size}.png"
                picture(page, path, full_page=True)
            page.context.close()


def signed_in(browser: Browser, lab: Lab, theme: Theme, size: str) -> Page:
    """A page of the owner."""
    width, height = SIZES[size]
    viewport = ViewportSize(width=width, height=height)
    context = browser.new_context(viewport=viewport, color_scheme=theme)
    page = context.new_page()
    page.goto(address_of(lab))
    page.get_by_label("Token").fill((lab.home / "token").read_text().strip())
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Newest jobs").wait_for()
    return page


def address_of(lab: Lab) -> str:
    """Where the page of the lab is."""
    return json.loads((lab.home / "server.json").read_text())["url"]


def show(page: Page, lab: Lab, screen: Screen) -> None:
    """Go to a screen, and wait until it is there."""
    page.goto(address_of(lab) + screen.path.format(job=lab.job))
    if screen.link:
        page.get_by_role("link", name=screen.link).first.click()
    page.locator(screen.shows).first.wait_for()
    # What comes later: curves, and the events that change them.
    page.wait_for_timeout(1500)


def picture(page: Page, path: Path, *, full_page: bool = False) -> None:
    """The page as it is, in few colours: they are enough, and take a third."""
    taken = page.screenshot(full_page=full_page)
    image = Image.open(io.BytesIO(taken)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
