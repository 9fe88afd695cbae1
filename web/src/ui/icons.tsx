// The signs of the screens: lines in a square of 16.

const PATHS = {
  overview: "M2.5 2.5h4.5v5h-4.5zM9 2.5h4.5v3H9zM9 7.5h4.5v6H9zM2.5 9.5h4.5v4h-4.5z",
  jobs: "M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.01M2.5 8h.01M2.5 12h.01",
  submit: "M8 3v10M3 8h10",
  schedules: "M2.5 4h11v9.5h-11zM2.5 7.5h11M5.5 2.5V5M10.5 2.5V5",
  sweeps: "M3 2.5v11M8 2.5v11M13 2.5v11M3 5l5 6 5-8M3 11l5-6 5 6",
  studies: "M2.5 2.5v11h11M5.5 10.5l2.5-3 2 1.5 3-4.5",
  batches: "M2.5 5.5l5.5-3 5.5 3-5.5 3zM2.5 8.5l5.5 3 5.5-3M2.5 11l5.5 3 5.5-3",
  data: "M3 4c0-2 10-2 10 0s-10 2-10 0v8c0 2 10 2 10 0V4M3 8c0 2 10 2 10 0",
  models: "M8 2l5.5 3v6L8 14l-5.5-3V5zM2.5 5L8 8l5.5-3M8 8v6",
  machines: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  offers: "M8.5 2.5h5v5l-6 6-5-5zM11 5h.01",
  clouds: "M4.5 12.5a3 3 0 0 1-.3-6 4 4 0 0 1 7.6.9 2.6 2.6 0 0 1 .2 5.1z",
  verification: "M8 2l5 2v4c0 3-2.5 5-5 6-2.5-1-5-3-5-6V4zM5.7 8l1.6 1.7 3-3.2",
  costs: "M2.5 13.5h11M4 11V8M8 11V4M12 11V6.5",
  people: "M8 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM3 13.5c0-5.5 10-5.5 10 0",
  audit: "M8 13.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11zM8 5v3l2 1.5",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** What stands for gpuyard: four GPUs, one of which works. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 20 20" width="20" height="20" aria-hidden="true">
      <rect x="1" y="1" width="8" height="8" rx="2" />
      <rect x="11" y="1" width="8" height="8" rx="2" class="faint" />
      <rect x="1" y="11" width="8" height="8" rx="2" class="faint" />
      <rect x="11" y="11" width="8" height="8" rx="2" class="faint" />
    </svg>
  );
}
