// A chart of curves with one x axis: zoom by dragging, back by a double click or the button.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { figure } from "../format";
import { theme } from "../state/theme";
import { useStore } from "../state/store";

export interface Curve {
  name: string;
  /** The same length as `xs`; null where it has no value. */
  values: (number | null)[];
}

interface Props {
  xs: number[];
  curves: Curve[];
  label: string;
  /** Times in UTC seconds, instead of steps. */
  isTime?: boolean;
  isLogarithmic?: boolean;
}

const HEIGHT = 240;
const COLOURS = ["--chart-1", "--chart-2", "--chart-3", "--chart-4"];

export function Chart(props: Props) {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shade = useStore(theme);
  const [isZoomed, setZoomed] = useState(false);
  const names = props.curves.map((curve) => curve.name).join("\n");

  useEffect(() => {
    const box = element.current!;
    const options = optionsOf(props, box.clientWidth);
    const made = new uPlot(keepingZoom(options, setZoomed), dataOf(props), box);
    plot.current = made;
    const resized = new ResizeObserver(() =>
      made.setSize({ width: box.clientWidth, height: HEIGHT }),
    );
    resized.observe(box);
    return () => {
      resized.disconnect();
      made.destroy();
      setZoomed(false);
    };
  }, [names, shade, props.isTime, props.isLogarithmic]);

  useEffect(() => plot.current?.setData(dataOf(props)), [props.xs, props.curves]);

  return (
    <div class="stack tight">
      <div ref={element} class="chart" role="img" aria-label={describe(props)} />
      {isZoomed && (
        <div>
          <button type="button" class="button plain" onClick={() => showAll(plot.current!)}>
            Show all of it
          </button>
        </div>
      )}
    </div>
  );
}

/** Options with which values that come leave a part in sight that somebody has chosen, and
 * which tell whether there is one. */
function keepingZoom(options: uPlot.Options, onZoom: (isZoomed: boolean) => void): uPlot.Options {
  let isZoomed = false;
  const { x } = options.scales!;
  return {
    ...options,
    scales: { ...options.scales, x: { ...x, auto: () => !isZoomed } },
    hooks: {
      setScale: [
        (drawn, scale) => {
          if (scale !== "x") return;
          isZoomed = isPartInSight(drawn);
          onZoom(isZoomed);
        },
      ],
    },
  };
}

function isPartInSight({ data, scales }: uPlot): boolean {
  const xs = data[0];
  const { min, max } = scales["x"]!;
  if (xs.length < 2 || min == null || max == null) return false;
  return min > xs[0]! || max < xs.at(-1)!;
}

function showAll(drawn: uPlot): void {
  const xs = drawn.data[0];
  drawn.setScale("x", { min: xs[0]!, max: xs.at(-1)! });
}

function dataOf({ xs, curves, isLogarithmic }: Props): uPlot.AlignedData {
  // A logarithmic scale has no place for zero and less.
  const shown = (value: number | null) =>
    isLogarithmic && value !== null && value <= 0 ? null : value;
  return [xs, ...curves.map((curve) => (isLogarithmic ? curve.values.map(shown) : curve.values))];
}

function optionsOf({ curves, isTime, isLogarithmic }: Props, width: number): uPlot.Options {
  const quiet = colour("--text-quiet");
  const axis = {
    stroke: quiet,
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui",
  };
  return {
    width: Math.max(width, 200),
    height: HEIGHT,
    scales: {
      x: {
        time: isTime ?? false,
        range: (drawn: uPlot, least: number, most: number) =>
          around(drawn.data[0], least, most, isTime),
      },
      y: { distr: isLogarithmic ? 3 : 1 },
    },
    axes: [
      { ...axis, size: 32, ...(isTime && { values: TIMES }) },
      {
        ...axis,
        size: 56,
        values: (_, ticks) => tickTexts(ticks),
      },
    ],
    cursor: { y: false, points: { size: 6 } },
    padding: [8, 8, 0, 0],
    series: [
      isTime ? { label: "time", value: "{HH}:{mm}:{ss}" } : { label: "step" },
      ...curves.map((curve, at) => ({
        label: curve.name.replace(/^system\//, "").replaceAll("_", " "),
        stroke: colour(COLOURS[at % COLOURS.length]!),
        // One curve alone stands on its area.
        ...(curves.length === 1 && !isLogarithmic && { fill: `${colour(COLOURS[0]!)}14` }),
        width: 1.6,
        spanGaps: true,
        points: { show: (drawn: uPlot, at: number) => isPoint(drawn.data[at]!) },
        value: (_: uPlot, value: number | null) => figure(value),
      })),
    ],
  };
}

/** By the distance of its ticks in seconds, how an axis shows times; the second line tells
 * the day, or the minute, where it changes. */
const TIMES: uPlot.Axis.Values = [
  [86_400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
  [1, ":{ss}", "\n{HH}:{mm}", null, "\n{HH}:{mm}", null, "\n{HH}:{mm}", null, 1],
];

/** The ticks of one axis, all written in the same way. */
function tickTexts(ticks: (number | null)[]): string[] {
  const sizes = ticks.flatMap((tick) => (tick ? [Math.abs(tick)] : []));
  const isSmall = Math.max(...sizes, 0) < 0.01 && sizes.length > 0;
  const text = (tick: number) => (isSmall && tick !== 0 ? tick.toExponential(0) : figure(tick));
  const isShort = ticks.every((tick) => tick === null || Number(text(tick)) === tick);
  return ticks.map((tick) => {
    if (tick === null) return "";
    return isSmall && tick !== 0 && !isShort ? tick.toExponential(1) : text(tick);
  });
}

/** What an axis shows: all from `least` to `most`, and of one place alone a little to both
 * sides. uPlot itself would show years there. */
function around(
  places: ArrayLike<number>,
  least: number,
  most: number,
  isTime?: boolean,
): [number, number] {
  if (places.length !== 1) return [least, most];
  const aside = isTime ? 30 : 1;
  return [places[0]! - aside, places[0]! + aside];
}

/** Whether there is one value only, of which a line would show nothing. */
function isPoint(values: ArrayLike<number | null | undefined>): boolean {
  let known = 0;
  for (let at = 0; at < values.length && known < 2; at++) if (values[at] != null) known++;
  return known === 1;
}

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name);
}

/** What the curves show, for who cannot see them. */
function describe({ label, curves }: Props): string {
  const ends = curves.map(({ name, values }) => {
    const known = values.filter((value) => value !== null);
    return `${name} from ${figure(known[0])} to ${figure(known.at(-1))}`;
  });
  return `${label}: ${ends.join(", ")}`;
}
