// What needs what, drawn from left to right: a column for each distance from the beginning.

import type { ComponentChildren } from "preact";

export interface GraphNode {
  name: string;
  needs: readonly string[];
}

interface Props<T extends GraphNode> {
  nodes: readonly T[];
  label: string;
  draw: (node: T) => ComponentChildren;
}

const WIDTH = 190;
const HEIGHT = 76;
const ACROSS = 52;
const BETWEEN = 20;

export function Graph<T extends GraphNode>({ nodes, label, draw }: Props<T>) {
  const columns = columnsOf(nodes);
  const tallest = Math.max(...columns.map((column) => column.length), 1);
  const height = tallest * (HEIGHT + BETWEEN) - BETWEEN;
  const places = new Map<string, { x: number; y: number }>();
  columns.forEach((column, at) => {
    const free = height - (column.length * (HEIGHT + BETWEEN) - BETWEEN);
    column.forEach((node, row) =>
      places.set(node.name, {
        x: at * (WIDTH + ACROSS),
        y: free / 2 + row * (HEIGHT + BETWEEN),
      }),
    );
  });
  const width = columns.length * (WIDTH + ACROSS) - ACROSS;
  return (
    <div class="scrolls" role="group" aria-label={label} tabIndex={0}>
      <div class="graph" style={{ width: `${width}px`, height: `${height}px` }}>
        <svg width={width} height={height} aria-hidden="true">
          {nodes.flatMap((node) =>
            node.needs.map((need) => (
              <Edge
                key={`${need}\n${node.name}`}
                from={places.get(need)}
                to={places.get(node.name)!}
              />
            )),
          )}
        </svg>
        {columns.flat().map((node) => {
          const { x, y } = places.get(node.name)!;
          const style = {
            left: `${x}px`,
            top: `${y}px`,
            width: `${WIDTH}px`,
            height: `${HEIGHT}px`,
          };
          return (
            <div key={node.name} class="node" style={style}>
              {draw(node)}
            </div>
          );
        })}
      </div>
    </div>
  );
}

interface Point {
  x: number;
  y: number;
}

/** A curve from the end of one node to the beginning of another; none to what is not here. */
function Edge({ from, to }: { from: Point | undefined; to: Point }) {
  if (!from) return null;
  const begin = { x: from.x + WIDTH, y: from.y + HEIGHT / 2 };
  const end = { x: to.x - 2, y: to.y + HEIGHT / 2 };
  const bend = Math.max(24, (end.x - begin.x) / 2);
  const curve = `C ${begin.x + bend} ${begin.y} ${end.x - bend} ${end.y} ${end.x} ${end.y}`;
  const tip = `M ${end.x - 7} ${end.y - 4} L ${end.x} ${end.y} L ${end.x - 7} ${end.y + 4}`;
  return <path d={`M ${begin.x} ${begin.y} ${curve} ${tip}`} />;
}

/** The nodes by how many others come before them at most; in each column, those beside one
 * another that need the same. */
export function columnsOf<T extends GraphNode>(nodes: readonly T[]): T[][] {
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const depths = new Map<string, number>();
  function depthOf(node: T, above: readonly string[]): number {
    const known = depths.get(node.name);
    if (known !== undefined) return known;
    const path = [...above, node.name];
    const before = node.needs
      // Runs of different days may need one another in a circle.
      .filter((need) => byName.has(need) && !path.includes(need))
      .map((need) => depthOf(byName.get(need)!, path) + 1);
    const depth = Math.max(0, ...before);
    depths.set(node.name, depth);
    return depth;
  }
  const columns: T[][] = [];
  for (const node of nodes) (columns[depthOf(node, [])] ??= []).push(node);
  const rows = new Map<string, number>();
  for (const column of columns) {
    const middle = (node: T) => {
      const known = node.needs.map((need) => rows.get(need)).filter((row) => row !== undefined);
      return known.length === 0 ? 0 : known.reduce((sum, row) => sum + row, 0) / known.length;
    };
    column.sort((a, b) => middle(a) - middle(b));
    column.forEach((node, row) => rows.set(node.name, row / Math.max(column.length - 1, 1)));
  }
  return columns;
}
