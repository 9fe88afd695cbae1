// Moments as people write them here: in the time zone of this computer.

const DATE_AND_TIME = /^\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?$/;

/** A date with a time as UTC seconds; anything else is the server's to read, or to refuse. */
export function momentOf(text: string): number | string {
  const written = text.trim();
  if (!DATE_AND_TIME.test(written)) return written;
  const at = Date.parse(written.replace(" ", "T")) / 1000;
  // Browsers read the 31st of February as a day in March, and a time that clocks leave out as another.
  const isThatTime = Number.isFinite(at) && toSecond(at) === toSecondOf(written);
  return isThatTime ? at : written;
}

/** A moment in UTC seconds as `momentOf` reads it; empty for none. */
export function localTime(at: number | null | undefined): string {
  return at === null || at === undefined ? "" : toSecond(at).replace(/:00$/, "");
}

function toSecond(at: number): string {
  const minutesBehindUtc = new Date(at * 1000).getTimezoneOffset();
  const shifted = new Date((at - minutesBehindUtc * 60) * 1000);
  return shifted.toISOString().slice(0, 19).replace("T", " ");
}

function toSecondOf(written: string): string {
  return `${written.replace("T", " ")}:00`.slice(0, 19);
}
