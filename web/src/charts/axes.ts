// The axes of parallel coordinates: where a value stands, from 0 at the foot to 1 at the top.

import { figure } from "../format";

export interface Axis {
  name: string;
  share: (value: string) => number | null;
  ticks: { share: number; text: string }[];
}

/** By the name of an axis, the part of it that was chosen. */
export type Ranges = Record<string, [number, number]>;

const FEW = 7;
const MOST_WORDS = 12;
const LONGEST_WORD = 12;
/** From here on, equal ratios tell more than equal differences. */
const WIDE = 50;

/** The axis on which these values of a parameter stand: numbers, or words. */
export function axisOf(name: string, values: readonly string[]): Axis {
  const numbers = values.map(Number);
  const areNumbers = values.length > 0 && values.every((v) => v.trim() !== "");
  return areNumbers && numbers.every(Number.isFinite)
    ? numbersAxis(name, numbers)
    : wordsAxis(name, values);
}

function numbersAxis(name: string, numbers: readonly number[]): Axis {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const isWide = low > 0 && high / low >= WIDE;
  const scale = isWide ? Math.log : (value: number) => value;
  const back = isWide ? Math.exp : (value: number) => value;
  const length = scale(high) - scale(low);
  const shareOf = (value: number) => (length === 0 ? 0.5 : (scale(value) - scale(low)) / length);
  const distinct = [...new Set(numbers)].sort((a, b) => a - b);
  const shown =
    distinct.length <= FEW
      ? distinct
      : [0, 0.25, 0.5, 0.75, 1].map((share) => back(scale(low) + share * length));
  return {
    name,
    share: (value) => {
      const number = Number(value);
      return Number.isFinite(number) ? shareOf(number) : null;
    },
    ticks: apart(shown.map((value) => ({ share: shareOf(value), text: figure(value) }))),
  };
}

function wordsAxis(name: string, values: readonly string[]): Axis {
  const words = [...new Set(values)].sort();
  const places = new Map(
    words.map((word, at) => [word, words.length < 2 ? 0.5 : at / (words.length - 1)]),
  );
  const every = Math.ceil(words.length / MOST_WORDS);
  const cut = (word: string) =>
    word.length > LONGEST_WORD ? `${word.slice(0, LONGEST_WORD - 1)}…` : word;
  return {
    name,
    share: (value) => places.get(value) ?? null,
    ticks: words
      .filter((_, at) => at % every === 0)
      .map((word) => ({ share: places.get(word)!, text: cut(word) })),
  };
}

/** Without those that would stand on one another. */
function apart(ticks: Axis["ticks"]): Axis["ticks"] {
  const kept: Axis["ticks"] = [];
  for (const tick of ticks) {
    const before = kept.at(-1);
    if (!before || tick.share - before.share > 0.05) kept.push(tick);
  }
  return kept;
}

/** Whether a line goes through all chosen parts. */
export function isWithin(
  values: readonly (string | null)[],
  axes: readonly Axis[],
  ranges: Ranges,
): boolean {
  return axes.every((axis, at) => {
    const range = ranges[axis.name];
    if (!range) return true;
    const value = values[at] ?? null;
    const share = value === null ? null : axis.share(value);
    return share !== null && share >= range[0] && share <= range[1];
  });
}
