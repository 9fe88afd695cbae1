// Parallel coordinates: an axis for each parameter and for the result, a line for each run.

import { useEffect, useRef, useState } from "preact/hooks";

import { type Axis, type Ranges, isWithin } from "./axes";

export interface Line {
  id: string;
  name: string;
  /** One for each axis; null where it has none. */
  values: (string | null)[];
  /** How good it is, between 0 and 1; null if that is not known. */
  rank: number | null;
}

interface Props {
  axes: Axis[];
  lines: Line[];
  label: string;
  /** The line to bring out. */
  shown: string | null;
  onShow: (id: string | null) => void;
  ranges: Ranges;
  onRanges: (ranges: Ranges) => void;
}

const HEIGHT = 320;
const TOP = 44;
const BOTTOM = 24;
const SIDE = 64;
const NARROWEST = 124;
const BAND = 28;
const SHORTEST_DRAG = 4;

export function Parallel(props: Props) {
  const { axes, lines, label } = props;
  const element = useRef<HTMLDivElement>(null);
  const [room, setRoom] = useState(600);
  useEffect(() => {
    const box = element.current!;
    const resized = new ResizeObserver(() => setRoom(box.clientWidth));
    resized.observe(box);
    return () => resized.disconnect();
  }, []);
  const width = Math.max(room, 2 * SIDE + NARROWEST * (axes.length - 1));
  const xOf = (at: number) =>
    axes.length < 2 ? width / 2 : SIDE + (at * (width - 2 * SIDE)) / (axes.length - 1);
  // The best on top of the others, and what is pointed at on top of all.
  const ordered = [...lines].sort(
    (a, b) =>
      Number(a.id === props.shown) - Number(b.id === props.shown) ||
      (a.rank ?? -1) - (b.rank ?? -1),
  );
  return (
    <div ref={element} class="scrolls" role="group" aria-label={label} tabIndex={0}>
      <svg class="parallel" width={width} height={HEIGHT} role="img" aria-label={label}>
        {ordered.map((line) => (
          <RunLine key={line.id} line={line} xOf={xOf} {...props} />
        ))}
        {axes.map((axis, at) => (
          <AxisLine key={axis.name} axis={axis} x={xOf(at)} {...props} />
        ))}
      </svg>
    </div>
  );
}

function yOf(share: number): number {
  return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

function shareAt(y: number): number {
  return Math.min(1, Math.max(0, (HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM)));
}

function RunLine({
  line,
  xOf,
  axes,
  shown,
  onShow,
  ranges,
}: Props & { line: Line; xOf: (at: number) => number }) {
  const points: string[] = [];
  line.values.forEach((value, at) => {
    const share = value === null ? null : axes[at]!.share(value);
    if (share !== null) points.push(`${xOf(at).toFixed(1)},${yOf(share).toFixed(1)}`);
  });
  const isOut = !isWithin(line.values, axes, ranges);
  const looks = ["run", line.rank === null ? "unranked" : "", isOut ? "out" : ""];
  if (line.id === shown) looks.push("shown");
  return (
    <polyline
      class={looks.join(" ")}
      points={points.join(" ")}
      style={{ "--rank": `${Math.round((line.rank ?? 0) * 100)}%` }}
      onPointerEnter={() => onShow(line.id)}
      onPointerLeave={() => onShow(null)}
    >
      <title>{line.name}</title>
    </polyline>
  );
}

function AxisLine({ axis, x, ranges, onRanges }: Props & { axis: Axis; x: number }) {
  const begin = useRef<number | null>(null);
  const range = ranges[axis.name];
  const shareOf = (event: PointerEvent) => {
    const svg = (event.currentTarget as SVGElement).ownerSVGElement!;
    return shareAt(event.clientY - svg.getBoundingClientRect().top);
  };
  function drag(event: PointerEvent): void {
    if (begin.current === null) return;
    const [one, other] = [begin.current, shareOf(event)];
    const isDrag = Math.abs(yOf(one) - yOf(other)) >= SHORTEST_DRAG;
    const { [axis.name]: _, ...rest } = ranges;
    onRanges(
      isDrag ? { ...rest, [axis.name]: [Math.min(one, other), Math.max(one, other)] } : rest,
    );
  }
  return (
    <g class="axis">
      <line x1={x} x2={x} y1={yOf(0)} y2={yOf(1)} />
      <text class="name" x={x} y={TOP - 24}>
        {axis.name.length > 18 ? `${axis.name.slice(0, 17)}…` : axis.name}
        <title>{axis.name}</title>
      </text>
      {axis.ticks.map((tick) => (
        <g key={tick.text}>
          <line x1={x - 4} x2={x} y1={yOf(tick.share)} y2={yOf(tick.share)} />
          <text x={x - 8} y={yOf(tick.share) + 4}>
            {tick.text}
          </text>
        </g>
      ))}
      {range && (
        <rect
          class="range"
          x={x - 6}
          width={12}
          y={yOf(range[1])}
          height={yOf(range[0]) - yOf(range[1])}
        />
      )}
      <rect
        class="band"
        x={x - BAND / 2}
        width={BAND}
        y={TOP - 8}
        height={HEIGHT - TOP - BOTTOM + 16}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          begin.current = shareOf(event);
        }}
        onPointerMove={drag}
        onPointerUp={(event) => {
          drag(event);
          begin.current = null;
        }}
        onPointerCancel={() => (begin.current = null)}
      />
    </g>
  );
}
