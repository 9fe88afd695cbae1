// Figures and times as people read them.

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** 12s, 3m05s, 2h10m, 4d3h; "–" for what is not known. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < MINUTE) return `${whole}s`;
  if (whole < HOUR) return `${Math.floor(whole / MINUTE)}m${two(whole % MINUTE)}s`;
  if (whole < DAY)
    return `${Math.floor(whole / HOUR)}h${two(Math.floor((whole % HOUR) / MINUTE))}m`;
  return `${Math.floor(whole / DAY)}d${Math.floor((whole % DAY) / HOUR)}h`;
}

function two(number: number): string {
  return String(number).padStart(2, "0");
}

/** "3m05s ago" of a time in UTC seconds, by the server's clock. */
export function ago(at: number | null | undefined, now: number): string {
  return at === null || at === undefined ? "–" : `${duration(now - at)} ago`;
}

/** A time in UTC seconds as the reader's own clock shows it. */
export function time(at: number | null | undefined): string {
  if (at === null || at === undefined) return "–";
  return new Date(at * 1000).toLocaleString(undefined, {
    dateStyle: "medium",
    timeStyle: "medium",
  });
}

export function clockTime(at: number): string {
  return new Date(at * 1000).toLocaleTimeString(undefined, { hourCycle: "h23" });
}

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  let value = count;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (value < 1000 || unit === "TB")
      return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1000;
  }
  return "";
}

/** Memory of a GPU as its makers count it: 24 GB are 24,576 MB. */
export function memory(megabytes: number): string {
  const gigabytes = megabytes / 1024;
  return `${gigabytes.toLocaleString("en", { maximumSignificantDigits: 3 })} GB`;
}

/** An amount of money; the API gives it as a decimal number in a string. */
export function money(amount: string | null | undefined, currency = "USD"): string {
  if (amount === null || amount === undefined) return "–";
  const value = Number(amount);
  const isTiny = value !== 0 && Math.abs(value) < 0.005;
  const digits = isTiny
    ? { maximumSignificantDigits: 2 }
    : { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  return value.toLocaleString("en", { style: "currency", currency, ...digits });
}

/** An amount of money in whole cents, for columns. */
export function cents(amount: string | null | undefined, currency = "USD"): string {
  const value = Number(amount ?? 0);
  return value > 0 && value < 0.005 ? `<${money("0.01", currency)}` : money(amount, currency);
}

/** A measured value in few digits. */
export function figure(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6))
    return value.toExponential(2).replace(/\.?0+e/, "e");
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

/** A quantity beside others: one digit behind the point below ten, none above. */
export function rough(value: number): string {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

export function count(value: number): string {
  return value.toLocaleString("en");
}

/** An id's end, by which people tell jobs apart. */
export function shortId(id: string): string {
  return id.slice(-8);
}
