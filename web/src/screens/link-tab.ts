// Opens what a job serves in a tab of its own.

import type { Schemas } from "../api/client";

/** Opens the address that `ask` gets. Throws what `ask` throws. */
export async function openTab(ask: () => Promise<Schemas["ToolLink"]>): Promise<void> {
  // At once: after an answer, browsers open no tab.
  const tab = window.open("", "_blank");
  try {
    const link = await ask();
    if (tab === null) throw new Error("The browser opens no tab. Allow it for this page.");
    tab.opener = null;
    tab.location.replace(link.url);
  } catch (error) {
    tab?.close();
    throw error;
  }
}
