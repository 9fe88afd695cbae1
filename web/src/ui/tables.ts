// Tables on narrow screens: each row becomes a card, and each cell says what it is.

const NARROW = matchMedia("(max-width: 760px)");

/** Keeps the title of its column in each cell (`data-title`), for the style to show. */
export function titleCells(): void {
  let isDue = false;
  const look = () => {
    if (isDue || !NARROW.matches) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      document.querySelectorAll("table").forEach(titleCellsOf);
    });
  };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
  NARROW.addEventListener("change", look);
}

function titleCellsOf(table: HTMLTableElement): void {
  const titles = [...(table.tHead?.rows[0]?.cells ?? [])].map((cell) => cell.textContent ?? "");
  const rows = [...table.rows].filter((row) => row.parentElement !== table.tHead);
  for (const row of rows) {
    let column = 0;
    for (const cell of row.cells) {
      const title = titles[column] ?? "";
      if (cell.dataset["title"] !== title) cell.dataset["title"] = title;
      column += cell.colSpan;
    }
  }
}
